//! The relay's own certificate, read again when its files change.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The files are looked at this often. What renews certificates does it days ahead.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Where certificate and key lie, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// certificate, and those that lead to the authority
    pub cert: PathBuf,
    /// private key
    pub key: PathBuf,
    /// how often they are looked at
    pub reload_every: Duration,
}

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// a file can't be read, or holds something else
    #[error("can't read {what} from {}", path.display())]
    File {
        /// `a certificate` or `a private key`
        what: &'static str,
        /// which file
        path: PathBuf,
        /// why
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// the two don't go together
    #[error("certificate and key can't be used")]
    Unusable(#[source] rustls::Error),
}

impl TlsError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            TlsError::File { .. } => "TlsFileUnusable",
            TlsError::Unusable(_) => "CertificateUnusable",
        }
    }
}

/// The certificate of the moment.
#[derive(Clone)]
pub(crate) struct Tls(watch::Receiver<Arc<ServerConfig>>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files, and again whenever they changed, until `end`. Files that can't be used then leave the certificate
    /// as it was.
    pub(crate) async fn load(files: TlsFiles, end: CancellationToken) -> Result<Tls, TlsError> {
        let mut seen = stamp(&files).await;
        let (sender, receiver) = watch::channel(config(&files)?);
        tokio::spawn(end.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(files.reload_every).await;
                let now = stamp(&files).await;
                if now == seen {
                    continue;
                }
                match config(&files) {
                    Ok(config) => {
                        tracing::info!("took the new certificate");
                        sender.send_replace(config);
                        seen = now;
                    }
                    // One of two files may be there before the other: looked at again next time.
                    Err(error) => {
                        tracing::warn!(
                            reason = error.reason(),
                            "the new certificate can't be used, the old one stays: {error}"
                        );
                    }
                }
            }
        }));
        Ok(Tls(receiver))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.borrow()))
    }
}

/// What the files hold, as a hash: mounted Secrets change without a change of names or times that could be trusted.
async fn stamp(files: &TlsFiles) -> [Option<u64>; 2] {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let hash = async |path: &Path| -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        tokio::fs::read(path).await?.hash(&mut hasher);
        Ok(hasher.finish())
    };
    [hash(&files.cert).await.ok(), hash(&files.key).await.ok()]
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let unusable = |what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { what, path, source }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(unusable("a certificate", &files.cert))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(unusable("a private key", &files.key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Unusable)?;
    // A WebSocket upgrade is HTTP/1.1's.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
