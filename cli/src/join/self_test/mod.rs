//! The self-test of this device, before it claims anything: one layer is computed by the backend that windows would be
//! computed by, its result is compared with plain arithmetic, and the time of a token tells the device's speed.
//!
//! It runs in a process of its own, since a backend that doesn't fit the device may take its process with it.

mod arithmetic;
mod model;

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use kvasir_engine::{Backend, Mode, Span, Window, WindowOptions};
use serde::{Deserialize, Serialize};
use tokio::{process::Command, time::timeout};

use crate::table::bytes;
use model::{Layer, Shape};

/// Backends of this build, the best first. The last one is the processor itself, which all others fall back to.
const BACKENDS: [&str; 1] = ["CPU"];

/// Rows of a batch: enough for the kernels of prompts, which take four at a time.
const ROWS: usize = 4;
/// How far a result may be from plain arithmetic, as a part of what the layer adds to its input. 8-bit activations are
/// about 0.01 off; a kernel that is wrong is off by as much as there is.
const BAND: f64 = 0.05;
/// Tokens that the speed is measured by, at most, and the time that they may take.
const TIMED: u32 = 48;
const TIMED_WITHIN: Duration = Duration::from_secs(1);
/// A test that takes longer fails: no ring could use such a device.
const WITHIN: Duration = Duration::from_secs(300);

/// What the test found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tested {
    /// device that computed
    backend: String,
    /// from plain arithmetic, as a part of what the layer adds
    difference: f64,
    /// median time of a token
    token_micros: u64,
    /// bytes of weights that each token takes
    bytes: u64,
}

impl Tested {
    /// Bytes of weights per second: what a window's speed follows from.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.bytes.saturating_mul(1_000_000) / self.token_micros.max(1)
    }
}

impl std::fmt::Display for Tested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tested { backend, .. } = self;
        write!(
            f,
            "{backend} passed its self-test, {}/s",
            bytes(self.bytes_per_second())
        )
    }
}

/// Tests the backends of this device and gives the first that passes. `file` is made for it, and removed.
///
/// # Errors
/// When not even the processor computes what it should, with the reason.
pub(super) async fn of_this_device(file: &Path, threads: Option<u32>) -> anyhow::Result<Tested> {
    let tested = first_that_passes(&BACKENDS, async |_| in_a_process(file, threads).await).await;
    // Nobody needs it any more, and a device may be small.
    let _ = fs::remove_file(file);
    tested.context("this device can't lend itself to rings: it does not compute what it should")
}

/// The first of `backends` that passes `test`. Those that don't are told of: nobody should wonder about the speed.
async fn first_that_passes(
    backends: &[&str],
    test: impl AsyncFn(&str) -> anyhow::Result<Tested>,
) -> anyhow::Result<Tested> {
    let mut backends = backends.iter().peekable();
    while let Some(backend) = backends.next() {
        match test(backend).await {
            Ok(tested) => return Ok(tested),
            Err(error) => match backends.peek() {
                Some(next) => eprintln!("{backend} failed its self-test and is not used, trying {next}: {error:#}"),
                None => return Err(error.context(format!("{backend} failed its self-test"))),
            },
        }
    }
    bail!("this build has no backend")
}

/// Runs [`run`] in a child, which can't take this process with it.
async fn in_a_process(file: &Path, threads: Option<u32>) -> anyhow::Result<Tested> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["join", "--self-test"])
        .arg(file)
        .env("NO_COLOR", "1")
        .env_remove("KVASIR_TOKEN")
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(threads) = threads {
        command.arg("--threads").arg(threads.to_string());
    }
    let ended = timeout(WITHIN, command.output()).await;
    let output = ended.map_err(|_| anyhow::anyhow!("it was not done within {} s", WITHIN.as_secs()))??;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim().lines().last().unwrap_or_default();
        bail!("its process ended ({}) {last}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("its process said nothing")
}

/// The test itself, in the child: writes the model to `file`, loads it and compares.
///
/// # Errors
/// What failed, or by how much the result is off.
pub(super) fn run(file: &Path, threads: Option<u32>) -> anyhow::Result<Tested> {
    let layer = Layer::new(Shape::FULL);
    write(file, &layer.file())?;
    test(file, &layer, threads.unwrap_or(0))
}

fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    fs::write(file, content).with_context(|| {
        format!(
            "can't write {}, which takes {}",
            file.display(),
            bytes(content.len() as u64)
        )
    })
}

fn test(file: &Path, layer: &Layer, threads: u32) -> anyhow::Result<Tested> {
    let options = WindowOptions {
        context_length: 256,
        max_rows: ROWS as u32,
        threads,
        ..WindowOptions::default()
    };
    let backend = Backend::init(Mode::Fast)?;
    let mut window = Window::load(backend, file, &options)?;
    let (rows, width) = (layer.rows(ROWS), layer.shape.width());
    let wanted = arithmetic::hidden(layer, &rows);
    let span = |position: usize, count: usize| Span {
        slot: 0,
        position: position as u32,
        count: count as u32,
    };
    let mut out = Vec::new();
    window.run(&[span(0, ROWS)], &rows, &mut out)?;
    let prompt = difference(&rows, &wanted, &out);
    window.clear(0);
    let mut single = Vec::new();
    for (position, row) in rows.chunks_exact(width).enumerate() {
        window.run(&[span(position, 1)], row, &mut out)?;
        single.extend_from_slice(&out);
    }
    let answer = difference(&rows, &wanted, &single);
    let difference = prompt.max(answer);
    ensure!(
        difference <= BAND,
        "its results are off by {prompt:.3} for prompts and {answer:.3} for answers, where {BAND} is the most"
    );
    let (mut times, begun) = (Vec::new(), Instant::now());
    for position in (ROWS as u32..).take(TIMED as usize) {
        let began = Instant::now();
        window.run(&[span(position as usize, 1)], &rows[..width], &mut out)?;
        times.push(began.elapsed());
        if begun.elapsed() > TIMED_WITHIN {
            break;
        }
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(Tested {
        backend: window.backend_name().to_owned(),
        difference,
        token_micros: median.as_micros() as u64,
        bytes: layer.weight_bytes(),
    })
}

/// Length of what is wrong with `got`, as a part of what the layer adds to `rows`.
fn difference(rows: &[f32], wanted: &[f32], got: &[f32]) -> f64 {
    let length = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt()
    };
    if got.len() != wanted.len() {
        return f64::INFINITY;
    }
    length(got, wanted) / length(wanted, rows)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn tested(backend: &str) -> Tested {
        Tested {
            backend: backend.to_owned(),
            difference: 0.01,
            token_micros: 2_000,
            bytes: 32 << 20,
        }
    }

    #[test]
    fn this_machine_passes_and_has_a_speed() {
        let folder = tempfile::tempdir().unwrap();
        let tested = run(&folder.path().join("layer.gguf"), Some(1)).unwrap();
        assert_eq!(tested.backend, "CPU");
        assert!(tested.difference > 0.0 && tested.difference < BAND, "{tested:?}");
        assert!(tested.bytes_per_second() > 50 << 20, "{tested:?}");
    }

    #[test]
    fn weights_that_are_not_those_of_the_arithmetic_are_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layer.gguf");
        let layer = Layer::new(Shape::FULL);
        for matrix in ["attention", "feed-forward"] {
            let mut other = layer.clone();
            let wrong = match matrix {
                "attention" => &mut other.attended,
                _ => &mut other.down,
            };
            // a quarter of it stands in another place
            let quarter = wrong.weights.len() / 4;
            wrong.weights[..quarter].reverse();
            write(&file, &other.file()).unwrap();
            let error = test(&file, &layer, 1).unwrap_err().to_string();
            assert!(error.starts_with("its results are off by"), "{matrix}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_measured_by_what_the_layer_adds() {
        let (rows, wanted) = ([1.0, 1.0], [1.0, 3.0]);
        assert!(difference(&rows, &wanted, &wanted).abs() < 1e-12);
        assert!((difference(&rows, &wanted, &[1.0, 4.0]) - 0.5).abs() < 1e-12);
        assert!(
            (difference(&rows, &wanted, &rows) - 1.0).abs() < 1e-12,
            "a layer that does nothing"
        );
        assert!(difference(&rows, &wanted, &[1.0]).is_infinite());
    }

    #[tokio::test]
    async fn a_backend_that_fails_is_not_used_and_the_next_one_is_tried() {
        let tried = RefCell::new(Vec::new());
        let test = async |backend: &str| {
            tried.borrow_mut().push(backend.to_owned());
            match backend {
                "CPU" => Ok(tested(backend)),
                other => bail!("{other} gives nothing but zeros"),
            }
        };
        let passed = first_that_passes(&["Vulkan", "CPU"], test).await.unwrap();
        assert_eq!(passed, tested("CPU"));
        assert_eq!(*tried.borrow(), ["Vulkan", "CPU"]);
        let error = first_that_passes(&["Vulkan"], test).await.unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "Vulkan failed its self-test: Vulkan gives nothing but zeros"
        );
    }

    #[test]
    fn the_speed_is_told_in_bytes_per_second() {
        assert_eq!(tested("CPU").bytes_per_second(), 16_777_216_000);
        assert_eq!(tested("CPU").to_string(), "CPU passed its self-test, 15.6 GiB/s");
    }
}
