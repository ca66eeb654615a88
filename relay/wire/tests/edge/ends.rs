//! Two ends of an edge that agree, streams between them, and middlemen on the way.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use kvasir_plan::BoundaryType;
use kvasir_wire::{
    Limits,
    edge::{self, EdgeConfig, EdgeError, EdgeReceiver, EdgeSender, Role, Timings},
    frame::{Frame, Hello, Lap, LapKind, Span, VERSION},
    trust::NodeKeys,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex, split},
    sync::{oneshot, watch},
};

pub(crate) type End = (EdgeSender, EdgeReceiver);

pub(crate) fn limits() -> Limits {
    Limits {
        embedding_length: 640,
        boundary_type: BoundaryType::Bf16,
        max_lap_tokens: 512,
        sequences: 4,
        vocabulary: 1000,
        max_prompt: 512,
    }
}

/// Predecessor and successor of edge 0 in a ring of two.
pub(crate) fn configs(limits: Limits, max_laps: u16) -> [EdgeConfig; 2] {
    let keys = [NodeKeys::generate().unwrap(), NodeKeys::generate().unwrap()].map(Arc::new);
    [(Role::Predecessor, 0), (Role::Successor, 1)].map(|(role, rank)| EdgeConfig {
        ring: "ring".into(),
        epoch: 3,
        edge: 0,
        identity: "model".into(),
        role,
        own: Arc::clone(&keys[rank]),
        peer_noise_key: keys[1 - rank].noise_public(),
        hello: Hello {
            version: VERSION,
            ring: "ring".into(),
            epoch: 3,
            rank: rank as u32,
            identity: "model".into(),
            embedding_length: limits.embedding_length,
            boundary_type: limits.boundary_type,
        },
        expect_rank: 1 - rank as u32,
        limits,
        max_laps,
        timings: Timings::default(),
    })
}

pub(crate) async fn open_both<A, B>(streams: (A, B), configs: [EdgeConfig; 2]) -> [Result<End, EdgeError>; 2]
where
    A: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let [predecessor, successor] = configs;
    let (predecessor, successor) = tokio::join!(edge::open(streams.0, predecessor), edge::open(streams.1, successor));
    [predecessor, successor]
}

/// An edge whose two ends agree.
pub(crate) async fn edge_over<A, B>(streams: (A, B), max_laps: u16) -> [End; 2]
where
    A: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    open_both(streams, configs(limits(), max_laps))
        .await
        .map(Result::unwrap)
}

/// A chunk of `rows` rows of sequence `id`'s prompt.
pub(crate) fn prefill(id: u64, rows: u32) -> Frame {
    let spans = vec![Span {
        sequence: id,
        position: 0,
        count: rows,
    }];
    let hidden = vec![id as u8; rows as usize * 1280].into();
    Frame::Lap(Lap {
        id,
        kind: LapKind::Prefill,
        compute_us: 0,
        spans,
        hidden,
    })
}

/// One row of sequence `id`: 1.3 kB on the wire.
pub(crate) fn decode(id: u64) -> Frame {
    let spans = vec![Span {
        sequence: id,
        position: 9,
        count: 1,
    }];
    Frame::Lap(Lap {
        id,
        kind: LapKind::Decode,
        compute_us: 0,
        spans,
        hidden: vec![id as u8; 1280].into(),
    })
}

/// What a middleman does with what he carries.
#[derive(Clone)]
pub(crate) struct Middleman {
    /// nothing passes while false
    pub(crate) lets_pass: watch::Receiver<bool>,
    /// bytes in a second
    pub(crate) rate: Option<u32>,
}

/// Two streams whose bytes pass a middleman, `room` bytes at a time.
pub(crate) fn by_way_of(middleman: &Middleman, room: usize) -> (DuplexStream, DuplexStream) {
    let ((near, here), (there, far)) = (duplex(room), duplex(room));
    let ((here_reads, here_writes), (there_reads, there_writes)) = (split(here), split(there));
    tokio::spawn(carry(here_reads, there_writes, middleman.clone()));
    tokio::spawn(carry(there_reads, here_writes, middleman.clone()));
    (near, far)
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut middleman: Middleman) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if let Some(rate) = middleman.rate {
            tokio::time::sleep(Duration::from_secs(1) * read as u32 / rate).await;
        }
        let passes = middleman.lets_pass.wait_for(|passes| *passes).await.is_ok();
        if !passes || to.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
    // The other end may be gone already.
    let _ = to.shutdown().await;
}

/// Two streams; what the first sends passes `meddle`, which gets each message's number and bytes and gives what goes on.
/// Message 0 is the handshake's, 1 the hello.
pub(crate) fn meddled<F>(mut meddle: F) -> (DuplexStream, DuplexStream)
where
    F: FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
{
    let ((near, here), (there, far)) = (duplex(1 << 20), duplex(1 << 20));
    let ((mut here_reads, mut here_writes), (mut there_reads, mut there_writes)) = (split(here), split(there));
    tokio::spawn(async move {
        let mut preamble = [0; 18];
        here_reads.read_exact(&mut preamble).await?;
        there_writes.write_all(&preamble).await?;
        for number in 0.. {
            let mut message = vec![0; usize::from(here_reads.read_u16_le().await?)];
            here_reads.read_exact(&mut message).await?;
            for message in meddle(number, message) {
                there_writes.write_u16_le(message.len() as u16).await?;
                there_writes.write_all(&message).await?;
            }
        }
        io::Result::Ok(())
    });
    tokio::spawn(async move { tokio::io::copy(&mut there_reads, &mut here_writes).await });
    (near, far)
}

/// A stream that counts its writes and tells when it is dropped.
pub(crate) struct Watched<S> {
    stream: S,
    writes: Arc<AtomicUsize>,
    _dropped: oneshot::Sender<()>,
}

/// Sees what a [`Watched`] stream goes through.
pub(crate) struct Watch {
    writes: Arc<AtomicUsize>,
    dropped: oneshot::Receiver<()>,
}

impl Watch {
    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Relaxed)
    }

    pub(crate) async fn dropped(self) {
        // The sender is never used, only dropped.
        assert!(self.dropped.await.is_err());
    }
}

pub(crate) fn watched<S>(stream: S) -> (Watched<S>, Watch) {
    let (sender, dropped) = oneshot::channel();
    let writes = Arc::new(AtomicUsize::new(0));
    (
        Watched {
            stream,
            writes: Arc::clone(&writes),
            _dropped: sender,
        },
        Watch { writes, dropped },
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
