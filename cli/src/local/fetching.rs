//! Fetches all windows of a ring, each in a process of its own, and shows how far they are.

use std::{
    io::IsTerminal,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Deserialize;

use super::Program;
use crate::{supervise::Children, table::bytes};

/// Where there is no terminal, a window's progress is told this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A line that `stage fetch` writes.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Event {
    Progress {
        done: u64,
        total: u64,
    },
    Done {
        bytes_fetched: u64,
    },
    Error {
        message: String,
    },
    Serving {
        backend: String,
        token_micros: Option<u64>,
    },
    /// of a newer stage
    #[serde(other)]
    Unknown,
}

/// How one window's fetch ended, as the stage told it.
#[derive(Clone, Debug, Default)]
struct Told {
    fetched: u64,
    failure: Option<String>,
}

/// Fetches the windows of `ranks` and returns the bytes that each rank of the ring took from the source: 0 for one that
/// was there, or is not among them.
pub(crate) async fn fetch(program: &Program<'_>, ranks: &[usize], children: &mut Children) -> anyhow::Result<Vec<u64>> {
    let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
    let told = Arc::new(Mutex::new(vec![Told::default(); program.manifest.ranks.len()]));
    for &rank in ranks {
        let (name, told) = (program.name(rank), told.clone());
        let mut show = Show::new(&name, bars.as_ref());
        let on_line = move |line: &str| {
            let Ok(event) = serde_json::from_str(line) else { return };
            show.event(&event);
            let told = &mut told.lock().unwrap_or_else(PoisonError::into_inner)[rank];
            match event {
                Event::Done { bytes_fetched } => told.fetched = bytes_fetched,
                Event::Error { message } => told.failure = Some(message),
                Event::Progress { .. } | Event::Serving { .. } | Event::Unknown => {}
            }
        };
        let log = program.folder.new_log(rank)?;
        children
            .spawn(&name, program.fetch(rank), &log, on_line)
            .with_context(|| format!("can't start the fetch of {name}"))?;
    }
    while let Some(exit) = children.next_exit().await {
        if !exit.success() {
            let told = told.lock().unwrap_or_else(PoisonError::into_inner);
            let at = (0..told.len()).find(|rank| program.name(*rank) == exit.name);
            match at.and_then(|rank| told[rank].failure.as_ref()) {
                Some(failure) => bail!("can't fetch the window of {}: {failure}", exit.name),
                None => bail!("can't fetch the window: {exit}; the log is {}", exit.log.display()),
            }
        }
    }
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(told.iter().map(|told| told.fetched).collect())
}

/// Shows the progress that a stage tells on its stdout.
pub(crate) struct Telling {
    name: String,
    show: Show,
}

impl Telling {
    /// For a stage of that name.
    pub(crate) fn new(name: &str) -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Telling {
            name: name.to_owned(),
            show: Show::new(name, bars.as_ref()),
        }
    }

    /// Takes a line; true when it says that the stage serves.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let Ok(event) = serde_json::from_str::<Event>(line) else {
            return false;
        };
        self.show.event(&event);
        if let Event::Serving { backend, token_micros } = &event {
            let speed = token_micros.map_or_else(String::new, |micros| {
                format!(", a token takes {:.1} ms", micros as f64 / 1000.0)
            });
            eprintln!("{}: serving on {backend}{speed}", self.name);
        }
        matches!(event, Event::Serving { .. })
    }
}

/// Shows one window's progress: a bar on a terminal, else a line now and then.
enum Show {
    Bar(ProgressBar),
    Lines { name: String, told: Instant },
}

impl Show {
    fn new(name: &str, bars: Option<&MultiProgress>) -> Self {
        match bars {
            Some(bars) => {
                let bar = bars.add(ProgressBar::no_length()).with_prefix(name.to_owned());
                let template = "{prefix}  {wide_bar}  {bytes} of {total_bytes}  {bytes_per_sec}";
                Show::Bar(
                    bar.with_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar())),
                )
            }
            None => Show::Lines {
                name: name.to_owned(),
                told: Instant::now(),
            },
        }
    }

    fn event(&mut self, event: &Event) {
        match (self, event) {
            (Show::Bar(bar), Event::Progress { done, total }) => {
                bar.set_length(*total);
                bar.set_position(*done);
            }
            (Show::Bar(bar), Event::Done { .. }) => bar.finish(),
            (Show::Bar(bar), Event::Error { .. }) => bar.abandon(),
            (Show::Lines { name, told }, Event::Progress { done, total }) if told.elapsed() >= TELL_EVERY => {
                *told = Instant::now();
                eprintln!("{name}: {} of {} fetched", bytes(*done), bytes(*total));
            }
            (Show::Lines { name, .. }, Event::Done { bytes_fetched: 0 }) => eprintln!("{name}: window was there"),
            (Show::Lines { name, .. }, Event::Done { bytes_fetched }) => {
                eprintln!("{name}: window is there, {} fetched", bytes(*bytes_fetched));
            }
            (Show::Lines { .. }, Event::Progress { .. } | Event::Error { .. })
            | (_, Event::Serving { .. } | Event::Unknown) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_events_are_read_and_unknown_ones_passed_over() {
        let event = |text| serde_json::from_str::<Event>(text).unwrap();
        assert!(matches!(
            event(r#"{"event":"progress","done":1,"total":9}"#),
            Event::Progress { done: 1, total: 9 }
        ));
        let done = r#"{"event":"done","bytesFetched":7,"bytesWritten":8}"#;
        assert!(matches!(event(done), Event::Done { bytes_fetched: 7 }));
        let error = r#"{"event":"error","reason":"NoSpace","message":"the disk is full"}"#;
        assert!(matches!(event(error), Event::Error { message } if message == "the disk is full"));
        assert!(matches!(event(r#"{"event":"resumed","at":3}"#), Event::Unknown));
    }
}
