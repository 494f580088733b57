//! TLS for NBD, and who is told by its certificates.

use super::disk::DiskConfig;
use std::path::PathBuf;

/// Files with certificates and keys for NBD, and whether clients need TLS.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct TlsConfig {
    /// The server's certificates, PEM.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Signer of clients' certificates, PEM; if set, a client needs a certificate, and over TCP
    /// TLS.
    pub client_ca: Option<PathBuf>,
    /// Refuse clients without TLS, also at unix sockets.
    pub required: bool,
}

impl TlsConfig {
    /// Do the files go together?
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn judge(&self) -> Result<(), String> {
        let TlsConfig { cert, key, client_ca, required } = self;
        if cert.is_some() != key.is_some() {
            return Err("a certificate and its key go together: give cert and key".into());
        }
        if cert.is_none() && (*required || client_ca.is_some()) {
            return Err("TLS needs a certificate: give cert and key".into());
        }
        Ok(())
    }

    /// Is a client without TLS refused? At a unix socket its owner and mode say who may connect;
    /// over TCP, one without TLS would not show the certificate that it needs.
    pub fn is_required(&self, over_tcp: bool) -> bool {
        self.required || over_tcp && self.client_ca.is_some()
    }

    /// Can clients of this disk be told by their certificates, if they have to be?
    ///
    /// # Errors
    /// What is missing.
    pub fn judge_allow(&self, disk: &DiskConfig) -> Result<(), String> {
        match disk.allow.is_empty() || self.client_ca.is_some() {
            true => Ok(()),
            false => Err(format!(
                "disk {}: allow goes by clients' certificates: give their authority, \
                 --tls-client-ca FILE, or client_ca under [tls] in the file",
                disk.name
            )),
        }
    }
}
