//! The load: frames at their times, whatever became of those before, and bytes as fast as they go.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use tokio::{io::AsyncWriteExt as _, task::LocalSet, time::sleep_until};

use super::sockets::{Edge, Receiver, frame};

/// Bytes in front of a frame's payload: its number.
const NUMBER: usize = 8;
/// Payload of a frame in bulk: a sealed piece.
const BULK_FRAME: usize = 32 * 1024;

/// What edges are loaded with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// bytes of payload in a frame
    pub(super) frame: usize,
    /// between two frames of an edge
    pub(super) pause: Duration,
    /// of each measurement
    pub(super) time: Duration,
}

/// The runtime's timers are good to about this.
const TIMER: Duration = Duration::from_millis(2);

/// Returns at `due`, to the microsecond: what is measured is less than a timer is late.
async fn until(due: Instant) {
    if let Some(nearly) = due.checked_sub(TIMER) {
        sleep_until(nearly.into()).await;
    }
    while Instant::now() < due {
        tokio::task::yield_now().await;
    }
}

/// How long frames took from end to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Load {
    /// Sends frames over all edges, and measures from the moment that a frame is due to its last byte at the other end: a
    /// middle that stalls can't hide the frames that had to wait for it.
    pub(super) async fn delays(self, edges: Vec<Edge>) -> anyhow::Result<Delays> {
        let count = edges.len() as u32;
        let frames = (self.time.as_secs_f64() / self.pause.as_secs_f64()).max(1.0) as u64;
        let begun = Instant::now() + Duration::from_millis(50);
        let delays = Rc::new(RefCell::new(Vec::with_capacity(count as usize * frames as usize)));
        let tasks = LocalSet::new();
        let mut receivers = Vec::new();
        for (number, edge) in (0u32..).zip(edges) {
            // Edges take turns within a pause.
            let first = begun + self.pause * number / count;
            let due = move |frame: u64| first + self.pause.mul_f64(frame as f64);
            let Edge {
                mut sender,
                mut receiver,
            } = edge;
            let size = self.frame;
            tasks.spawn_local(async move {
                let mut bytes = frame(&vec![0xA5; size]);
                let at = bytes.len() - size;
                for number in 0..frames {
                    until(due(number)).await;
                    bytes[at..at + NUMBER].copy_from_slice(&number.to_le_bytes());
                    sender.write_all(&bytes).await?;
                }
                // Kept open until the receiver has all.
                anyhow::Ok(sender)
            });
            let delays = Rc::clone(&delays);
            receivers.push(tasks.spawn_local(async move {
                let mut chunk = Receiver::chunk();
                let mut received = 0u64;
                while received < frames * size as u64 {
                    let read = receiver.read(&mut chunk, |_| {}).await? as u64;
                    let now = Instant::now();
                    let whole = received / size as u64..(received + read) / size as u64;
                    delays
                        .borrow_mut()
                        .extend(whole.map(|frame| now.saturating_duration_since(due(frame))));
                    received += read;
                }
                anyhow::Ok(())
            }));
        }
        tasks
            .run_until(async {
                for receiver in receivers {
                    receiver.await??;
                }
                anyhow::Ok(())
            })
            .await?;
        let mut delays = std::mem::take(&mut *delays.borrow_mut());
        delays.sort_unstable();
        let at = |share: f64| {
            let index = ((delays.len() as f64 * share) as usize).min(delays.len().saturating_sub(1));
            delays.get(index).map(|delay| delay.as_secs_f64() * 1e6)
        };
        Ok(Delays {
            p50_us: at(0.5).context("no frame came")?,
            p99_us: at(0.99).context("no frame came")?,
        })
    }

    /// MB in a second of one edge that carries `bytes`.
    pub(super) async fn bulk(self, edge: Edge, bytes: u64) -> anyhow::Result<f64> {
        let Edge {
            mut sender,
            mut receiver,
        } = edge;
        let frames = bytes.div_ceil(BULK_FRAME as u64);
        let begun = Instant::now();
        let send = async {
            let bytes = frame(&vec![0xA5; BULK_FRAME]);
            for _ in 0..frames {
                sender.write_all(&bytes).await?;
            }
            anyhow::Ok(())
        };
        let receive = async {
            let mut chunk = Receiver::chunk();
            let mut received = 0;
            while received < frames * BULK_FRAME as u64 {
                received += receiver.read(&mut chunk, |_| {}).await? as u64;
            }
            anyhow::Ok(received)
        };
        let ((), received) = tokio::try_join!(send, receive)?;
        ensure!(received == frames * BULK_FRAME as u64, "more came than was sent");
        Ok(received as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }
}
