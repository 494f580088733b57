//! Certificates for NBD over TLS.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or holds no such thing.
    #[error("{}: {source}; expected {expected} in PEM", path.display())]
    Pem {
        path: PathBuf,
        /// Content expected in the file.
        expected: &'static str,
        source: pem::Error,
    },
    /// The key does not belong to the certificate, or a kind that is not supported.
    #[error("{} and {}: {source}", cert.display(), key.display())]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
    /// The clients' authority cannot be one.
    #[error("{}: {reason}; expected the certificate of an authority", path.display())]
    ClientCa { path: PathBuf, reason: String },
}

/// Makes the configuration with which [`super::serve`] offers TLS 1.2 and 1.3: the server's
/// certificate chain and key, and with `client_ca` a demand that clients show a certificate signed
/// by it. All files in PEM.
pub fn tls_config(
    cert: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
        path: key.to_owned(),
        expected: "a private key",
        source,
    })?;
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let wrong = |reason| TlsError::ClientCa { path: path.to_owned(), reason };
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|e| wrong(e.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .map_err(|e| wrong(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(Arc::new(builder.with_single_cert(chain, private).map_err(pair)?))
}

/// All certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Pem { path: path.to_owned(), expected: "a certificate", source };
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(wrong)?;
    if all.is_empty() {
        return Err(wrong(pem::Error::NoItemsFound));
    }
    Ok(all)
}
