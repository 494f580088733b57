//! The names in a client's certificate, by which disks are allowed to it. Only certificates that the
//! clients' authority has signed come here.

use rustls::pki_types::CertificateDer;

/// Names that are looked at.
const NAMES_MAX: usize = 256;
/// The attribute "common name" (2.5.4.3) in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Tags of DER (X.690, 8.1.2) that a subject consists of.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// Texts that are read as UTF-8: UTF8String, PrintableString, IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The common names of the subject, and of its other names those of DNS (in lower case) and URIs.
/// What cannot be read gives no name.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    let dns = certificate.valid_dns_names().map(str::to_ascii_lowercase);
    let uris = certificate.valid_uri_names().map(str::to_owned);
    common_names(certificate.subject()).into_iter().chain(dns).chain(uris).take(NAMES_MAX).collect()
}

/// The common names in a subject: sets of pairs of an attribute and its value (RFC 5280, 4.1.2.4).
fn common_names(subject: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for (tag, set) in Items(subject) {
        for (inner, pair) in Items(set) {
            let mut pair = Items(pair);
            let attribute = pair.next();
            if (tag, inner) == (SET, SEQUENCE)
                && attribute == Some((OBJECT_IDENTIFIER, COMMON_NAME))
            {
                let text = pair.next().filter(|(tag, _)| TEXTS.contains(tag));
                names.extend(text.and_then(|(_, text)| String::from_utf8(text.into()).ok()));
            }
        }
    }
    names
}

/// The items of DER one after another: tag and content. Ends where they make no sense.
struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81 => (usize::from(*rest.first()?), &rest[1..]),
            0x82 => {
                let (len, rest) = rest.split_first_chunk::<2>()?;
                (usize::from(u16::from_be_bytes(*len)), rest)
            }
            // webpki takes no certificates over 64 KiB.
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = match content.len() {
            len @ 0..0x80 => vec![len as u8],
            len @ 0x80..0x100 => vec![0x81, len as u8],
            len => [&[0x82][..], &(len as u16).to_be_bytes()].concat(),
        };
        [&[tag][..], &len, content].concat()
    }

    fn attribute(identifier: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        let pair = [item(OBJECT_IDENTIFIER, identifier), item(tag, text)].concat();
        item(SET, &item(SEQUENCE, &pair))
    }

    #[test]
    fn common_names_are_found_among_other_attributes() {
        let long = "x".repeat(300);
        let subject = [
            attribute(&[0x55, 0x04, 0x0a], 0x0c, b"an organisation"),
            attribute(COMMON_NAME, 0x0c, "Zoë".as_bytes()),
            attribute(COMMON_NAME, 0x13, b"vm-web"),
            attribute(COMMON_NAME, 0x0c, long.as_bytes()),
            attribute(COMMON_NAME, 0x1e, b"\0w\0i\0d\0e"),
            attribute(COMMON_NAME, 0x0c, b"\xff"),
        ];
        assert_eq!(common_names(&subject.concat()), ["Zoë", "vm-web", long.as_str()]);
        assert!(names(&CertificateDer::from(vec![1, 2, 3])).is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            common_names(&bytes);
            names(&CertificateDer::from(bytes));
        }

        #[test]
        fn each_common_name_comes_back(texts in proptest::collection::vec("[^\\x00]{0,200}", 0..5)) {
            let subject = texts.iter().map(|text| attribute(COMMON_NAME, 0x0c, text.as_bytes()));
            prop_assert_eq!(common_names(&subject.collect::<Vec<_>>().concat()), texts);
        }
    }
}
