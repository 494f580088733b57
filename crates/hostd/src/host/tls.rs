//! Certificates of the configuration.

use super::error::HostError;
use crate::config::{Config, TlsConfig};
use crate::frontends::nbd;
use std::sync::Arc;

/// Can the certificates be used?
///
/// # Errors
/// [`HostError::Tls`].
pub fn check_tls(config: &Config) -> Result<(), HostError> {
    server_config(config).map(|_| ())
}

/// Makes the configuration for `--tls-cert` and its like.
pub(super) fn server_config(
    config: &Config,
) -> Result<Option<Arc<rustls::ServerConfig>>, HostError> {
    let TlsConfig { cert: Some(cert), key: Some(key), client_ca, .. } = &config.tls else {
        return Ok(None);
    };
    let made = nbd::tls_config(cert, key, client_ca.as_deref());
    made.map(Some).map_err(|e| HostError::Tls(e.to_string()))
}
