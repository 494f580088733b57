//! Access control of the web page: the host that a request names, the address that it comes from,
//! and its token. Pure, but for reading the token's file.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;

/// Fewest and most letters of a token.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

/// Does a Host header name this host by an address, as localhost, or by one of the `allowed`
/// names? A page of somebody else's whose name leads here (DNS rebinding) sends that name.
pub fn is_own_host(host: &str, allowed: &[String]) -> bool {
    // A port may be empty (RFC 3986, 3.2.3).
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        let is_rest = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return is_rest && address.parse::<Ipv6Addr>().is_ok();
    }
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    // A dot at the end says that the name is whole.
    let plain = name.strip_suffix('.').unwrap_or(name);
    let is_own = name.parse::<IpAddr>().is_ok()
        || plain.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|own| own.eq_ignore_ascii_case(plain));
    is_own && port.is_none_or(is_port)
}

/// Does an Origin header name the same as a Host header?
pub fn is_same(origin: &str, host: &str) -> bool {
    let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    of.is_some_and(|of| of.eq_ignore_ascii_case(host))
}

/// The secret that is needed to change something by the page.
pub struct Token(Vec<u8>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("{path}: {1}", path = .0.display())]
    Read(PathBuf, io::Error),
    /// Others may read it, or write it.
    #[error("{path}: others may read or write it (mode {1:o}): chmod 600 {path}", path = .0.display())]
    Mode(PathBuf, u32),
    /// The token is too short, too long, or no text.
    #[error(
        "{path}: expected one line of {} to {} letters and digits; make one with: \
         (umask 077; openssl rand -hex 32 > {path})",
        TOKEN_BYTES.start(), TOKEN_BYTES.end(), path = .0.display()
    )]
    Text(PathBuf),
}

impl Token {
    /// Read it from a file that nobody else may read.
    ///
    /// # Errors
    /// [`TokenError`], which names the file.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let failed = |e| TokenError::Read(path.into(), e);
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode(path.into(), mode));
        }
        let mut text = Vec::new();
        let limit = *TOKEN_BYTES.end() as u64 + 2;
        file.take(limit).read_to_end(&mut text).map_err(failed)?;
        Token::new(text.trim_ascii()).ok_or_else(|| TokenError::Text(path.into()))
    }

    fn new(text: &[u8]) -> Option<Token> {
        let is_token = TOKEN_BYTES.contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
        is_token.then(|| Token(text.to_vec()))
    }

    /// Has an Authorization header it? Takes the same time for each wrong one of its length.
    pub fn is_in(&self, authorization: &str) -> bool {
        let Some((scheme, given)) = authorization.split_once(' ') else { return false };
        let is_equal: bool = self.0.as_slice().ct_eq(given.trim().as_bytes()).into();
        scheme.eq_ignore_ascii_case("bearer") && is_equal
    }
}

#[cfg(test)]
impl Token {
    /// One of a test.
    pub fn of(text: &str) -> Token {
        Token::new(text.as_bytes()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_addresses_and_localhost_are_own_hosts() {
        for own in [
            "127.0.0.1:9188",
            "127.0.0.1",
            "127.0.0.1:",
            "localhost.:9188",
            "localhost:1",
            "LocalHost",
            "[::1]:9188",
            "[::1]",
            "10.0.0.7:80",
        ] {
            assert!(is_own_host(own, &[]), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:9188",
            "localhost.evil.example:9188",
            "127.0.0.1.evil.example",
            "127.0.0.1:9188@evil.example",
            "127.0.0.1:x",
            "[::1",
            "[::1]x",
            "[evil]:1",
            "::1",
            " localhost",
        ] {
            assert!(!is_own_host(other, &[]), "{other}");
        }
    }

    #[test]
    fn an_allowed_name_is_an_own_host_and_no_other_name_is() {
        let allowed = ["kvm1.example.org".to_string(), "kvm1".to_string()];
        for own in ["kvm1.example.org:9187", "KVM1.Example.ORG.", "kvm1", "kvm1:1", "[::1]:9187"] {
            assert!(is_own_host(own, &allowed), "{own}");
        }
        for other in [
            "kvm2.example.org",
            "kvm1.example",
            "a.kvm1.example.org",
            "kvm1.example.org.evil.example",
            "kvm1.example.org..",
            "kvm1:x",
            "evil.example:kvm1",
            "kvm1@evil.example",
            "",
        ] {
            assert!(!is_own_host(other, &allowed), "{other}");
        }
    }

    #[test]
    fn an_origin_is_the_same_with_its_port() {
        assert!(is_same("http://localhost:9188", "localhost:9188"));
        assert!(is_same("https://10.0.0.7", "10.0.0.7"));
        for other in ["null", "", "localhost:9188", "http://localhost:80", "http://evil.example"] {
            assert!(!is_same(other, "localhost:9188"), "{other}");
        }
    }

    #[test]
    fn the_token_is_the_whole_token() {
        let token = Token::of("0123456789abcdef");
        assert!(token.is_in("Bearer 0123456789abcdef"));
        assert!(token.is_in("bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
        ] {
            assert!(!token.is_in(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_long_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let with = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            Token::read(&path).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(with("0123456789abcdef\n", 0o600), Ok(()));
        assert_eq!(with(&"x".repeat(1024), 0o400), Ok(()));
        for (text, mode, part) in [
            ("0123456789abcdef\n", 0o640, "chmod 600"),
            ("0123456789abcdef\n", 0o604, "mode 604"),
            ("short\n", 0o600, "openssl rand -hex 32"),
            ("", 0o600, "expected one line"),
            ("0123456789 abcdef\n", 0o600, "expected one line"),
            (&"x".repeat(1025), 0o600, "expected one line"),
        ] {
            let error = with(text, mode).unwrap_err();
            assert!(error.contains(part) && error.contains("/token"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).is_err());
    }
}
