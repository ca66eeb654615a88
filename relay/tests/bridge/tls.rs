//! TLS by the relay itself, with a certificate that is renewed while it runs.

use std::{path::Path, time::Duration};

use kvasir_relay::TlsFiles;
use kvasir_wire::edge::{EdgeError, LegError, LegStream, RelayDialer, Role};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::relay::{LIMIT, Relay, Wish, passes};

const RELOAD_EVERY: Duration = Duration::from_millis(20);

/// An authority of its own, with its certificate in `file`.
fn authority(file: &Path) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(file, issuer.pem()).unwrap();
    issuer
}

/// Puts a certificate for localhost where the relay looks for it.
fn issue(issuer: &CertifiedIssuer<'static, KeyPair>, files: &TlsFiles) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, issuer)
        .unwrap();
    std::fs::write(&files.cert, certificate.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
}

fn files(folder: &Path) -> TlsFiles {
    TlsFiles {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
        reload_every: RELOAD_EVERY,
    }
}

async fn dial(relay: &Relay, dialer: &RelayDialer, edge: u32, role: Role) -> Result<LegStream, EdgeError> {
    dialer.dial(&relay.url, &relay.ticket(edge, role), role, LIMIT).await
}

fn start(files: TlsFiles) -> impl Future<Output = Relay> {
    Relay::start(Wish {
        tls: Some(files),
        ..Wish::default()
    })
}

#[tokio::test]
async fn legs_pass_over_tls_and_a_stranger_s_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let ca = folder.path().join("ca.pem");
    issue(&authority(&ca), &files);
    let relay = start(files).await;
    let dialer = RelayDialer::new(Some(&ca)).unwrap();
    let mut predecessor = dial(&relay, &dialer, 0, Role::Predecessor).await.unwrap();
    let mut successor = dial(&relay, &dialer, 0, Role::Successor).await.unwrap();
    let bytes = vec![5; 500_000];
    passes(&mut predecessor, &mut successor, &bytes).await;
    passes(&mut successor, &mut predecessor, &bytes).await;
    let stranger = RelayDialer::new(None).unwrap();
    let error = dial(&relay, &stranger, 0, Role::Predecessor).await.unwrap_err();
    assert!(matches!(error, EdgeError::Leg(LegError::Tls { .. })), "{error:?}");
    assert!(error.reason() == "RelayTlsFailed");
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_and_a_broken_one_isn_t() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let [old_ca, new_ca] = ["old.pem", "new.pem"].map(|name| folder.path().join(name));
    issue(&authority(&old_ca), &files);
    let relay = start(files.clone()).await;
    let old = RelayDialer::new(Some(&old_ca)).unwrap();
    let mut predecessor = dial(&relay, &old, 0, Role::Predecessor).await.unwrap();
    let mut successor = dial(&relay, &old, 0, Role::Successor).await.unwrap();

    std::fs::write(&files.key, "no key").unwrap();
    let mut looks = tokio::time::interval(RELOAD_EVERY);
    for edge in 1..6 {
        looks.tick().await;
        dial(&relay, &old, edge, Role::Predecessor)
            .await
            .expect("the old certificate stays");
    }

    issue(&authority(&new_ca), &files);
    let new = RelayDialer::new(Some(&new_ca)).unwrap();
    let taken = async {
        while dial(&relay, &new, 1, Role::Predecessor).await.is_err() {
            looks.tick().await;
        }
    };
    tokio::time::timeout(LIMIT, taken)
        .await
        .expect("the new certificate is taken");
    passes(&mut predecessor, &mut successor, b"and nobody was broken off").await;
}

#[tokio::test]
async fn files_that_can_t_be_used_end_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    std::fs::write(&files.cert, "no certificate").unwrap();
    let relay = start(files).await;
    assert!(relay.ended.await.is_err());
}
