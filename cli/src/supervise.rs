//! Child processes that live and die with this one.
//!
//! Each child gets its own process group, so that Ctrl-C reaches it only through us, and a pipe as stdin: when this
//! process goes, however it goes, the child reads end of file and ends. What a child writes to stderr goes to its log
//! file; the end of it is kept, to say why the child died.

use std::{
    collections::HashMap,
    fmt,
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// What is kept of a child's stderr, and the most that a line on its stdout may hold, in bytes.
const KEPT: usize = 64 * 1024;

/// A process that a child left behind may hold its pipes open: they are read this much longer than the child lives.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a child ended.
#[derive(Debug)]
pub struct Exit {
    /// name that it was started under
    pub name: String,
    /// process id that it had
    pub id: u32,
    /// exit code or signal; none if the system doesn't tell
    pub status: Option<ExitStatus>,
    /// last line that it wrote to stderr; empty if none
    pub last_line: String,
    /// file that holds the rest
    pub log: PathBuf,
}

impl Exit {
    /// Ended by itself, with exit code 0.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended", self.name)?;
        if let Some(status) = self.status {
            write!(f, " ({status})")?;
        }
        if self.last_line.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.last_line)
        }
    }
}

/// A set of children, ended together. Dropping it kills those that are left.
#[derive(Debug)]
pub struct Children {
    tasks: JoinSet<Exit>,
    stop: CancellationToken,
    /// ends one child alone, by its process id
    stops: HashMap<u32, CancellationToken>,
    grace: Duration,
}

impl Children {
    /// No children yet. When they are ended, each gets SIGTERM, and SIGKILL if it is still there after `grace`.
    pub fn new(grace: Duration) -> Self {
        Children {
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
            stops: HashMap::new(),
            grace,
        }
    }

    /// Starts `command` under `name` and returns its process id. Its stderr is added to the file `log`; `on_line` gets
    /// each line of its stdout.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        command: std::process::Command,
        log: &Path,
        on_line: impl FnMut(&str) + Send + 'static,
    ) -> std::io::Result<u32> {
        let (log, file) = (log.to_owned(), OpenOptions::new().create(true).append(true).open(log)?);
        let mut child = Command::from(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child
            .id()
            .ok_or_else(|| std::io::Error::other("the process ended before it began"))?;
        let lines = tokio::spawn(read_lines(child.stdout.take(), on_line));
        let last_line = tokio::spawn(copy_to_log(child.stderr.take(), file));
        let (name, stop, grace) = (name.into(), self.stop.child_token(), self.grace);
        self.stops.insert(id, stop.clone());
        self.tasks.spawn(async move {
            let status = watch(&mut child, id, &stop, grace).await;
            let last_line = match timeout(LAST_WORDS, futures::future::join(lines, last_line)).await {
                Ok((_, last_line)) => last_line.unwrap_or_default(),
                Err(_) => String::new(),
            };
            Exit {
                name,
                id,
                status,
                last_line,
                log,
            }
        });
        Ok(id)
    }

    /// Waits for a child to end; none once all have ended.
    pub async fn next_exit(&mut self) -> Option<Exit> {
        loop {
            match self.tasks.join_next().await? {
                Ok(exit) => {
                    self.stops.remove(&exit.id);
                    return Some(exit);
                }
                Err(error) => tracing::error!(%error, "lost sight of a child process"),
            }
        }
    }

    /// Ends the child with this process id and waits until it is gone. Others that end meanwhile are passed over.
    pub async fn end_one(&mut self, id: u32) {
        let Some(stop) = self.stops.get(&id) else { return };
        stop.cancel();
        while let Some(exit) = self.next_exit().await {
            if exit.id == id {
                return;
            }
        }
    }

    /// Ends all children and waits until the last one is gone.
    pub async fn end(mut self) -> Vec<Exit> {
        self.stop.cancel();
        let mut exits = Vec::new();
        while let Some(exit) = self.next_exit().await {
            exits.push(exit);
        }
        exits
    }
}

/// Waits until the child is gone, by itself or because it was told to.
async fn watch(child: &mut Child, id: u32, stop: &CancellationToken, grace: Duration) -> Option<ExitStatus> {
    // `Child::wait` closes the pipe to stdin, which would end the child: hold it here.
    let _stdin = child.stdin.take();
    tokio::select! {
        status = child.wait() => return status.ok(),
        () = stop.cancelled() => {}
    }
    // Not reaped yet, so the id is still this child's.
    if let Some(id) = Pid::from_raw(id.cast_signed()) {
        let _ = kill_process(id, Signal::TERM);
    }
    if let Ok(status) = timeout(grace, child.wait()).await {
        return status.ok();
    }
    let _ = child.start_kill();
    child.wait().await.ok()
}

/// Hands on each line, without its end; what is longer than `KEPT` is handed on in pieces.
async fn read_lines(from: Option<impl AsyncRead + Unpin>, mut on_line: impl FnMut(&str)) {
    let Some(mut from) = from else { return };
    let mut pending = Vec::new();
    while matches!(from.read_buf(&mut pending).await, Ok(1..)) {
        while let Some(end) = pending
            .iter()
            .position(|byte| *byte == b'\n')
            .or((pending.len() >= KEPT).then_some(KEPT - 1))
        {
            let line: Vec<u8> = pending.drain(..=end).collect();
            on_line(String::from_utf8_lossy(&line).trim_end());
        }
    }
    if !pending.is_empty() {
        on_line(String::from_utf8_lossy(&pending).trim_end());
    }
}

/// Copies a child's stderr to its log and returns the last line that says something. A log that can't be written (a
/// full disk) doesn't stop the child.
async fn copy_to_log(from: Option<impl AsyncRead + Unpin>, mut log: File) -> String {
    let Some(mut from) = from else { return String::new() };
    let mut kept = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let _ = log.write_all(&piece[..count]);
        kept.extend_from_slice(&piece[..count]);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    last_words(&String::from_utf8_lossy(&kept)).to_owned()
}

/// The last line, unless it is a log line that tells of no error: such a one says nothing of an end. A panic's last line
/// is a hint how to see more; it is passed over.
fn last_words(text: &str) -> &str {
    let mut lines = text.lines().rev().map(str::trim);
    let last = lines
        .find(|line| !line.is_empty() && !line.starts_with("note: "))
        .unwrap_or_default();
    match log_line(last) {
        Some(("ERROR", said)) => said,
        Some(_) => "",
        None => last,
    }
}

/// Level and text of a line that a stage logged: time, level, text.
fn log_line(line: &str) -> Option<(&str, &str)> {
    let (time, rest) = line.split_once(' ')?;
    let (level, said) = rest.trim_start().split_once(' ')?;
    let known = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level);
    (known && time.ends_with('Z')).then_some((level, said))
}

#[cfg(test)]
mod tests {
    use std::{
        process::Command,
        sync::{Arc, Mutex, mpsc},
        time::Instant,
    };

    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    struct Log(tempfile::TempDir);

    impl Log {
        fn new() -> Self {
            Log(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> std::path::PathBuf {
            self.0.path().join("log")
        }
    }

    #[tokio::test]
    async fn a_child_that_fails_is_named_with_its_code_and_last_words() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        let script = "echo first >&2; echo 'the disk is full' >&2; echo >&2; exit 7";
        children.spawn("rank 1", sh(script), &log.path(), |_| {}).unwrap();
        let exit = children.next_exit().await.unwrap();
        assert_eq!(exit.to_string(), "rank 1 ended (exit status: 7): the disk is full");
        assert!(!exit.success());
        assert_eq!(
            std::fs::read_to_string(log.path()).unwrap(),
            "first\nthe disk is full\n\n"
        );
        assert!(children.next_exit().await.is_none());
    }

    #[test]
    fn last_words_are_an_errors_and_nothing_that_was_logged_in_passing() {
        let info = "2026-11-30T01:40:53.164189Z  INFO both links are up epoch=1";
        let error = "2026-11-30T01:40:54.300786Z ERROR cannot load the window: no memory";
        let panic = "thread 'engine' panicked at src/x.rs:1:1:\nindex out of bounds\nnote: run with RUST_BACKTRACE=1\n";
        assert_eq!(last_words(&format!("{error}\n{info}\n")), "");
        assert_eq!(
            last_words(&format!("{info}\n{error}\n\n")),
            "cannot load the window: no memory"
        );
        assert_eq!(last_words(panic), "index out of bounds");
        assert_eq!(last_words("GGML_ASSERT(n > 0) failed"), "GGML_ASSERT(n > 0) failed");
        assert_eq!(last_words(""), "");
    }

    #[tokio::test]
    async fn a_child_that_is_killed_is_named_with_its_signal() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        children.spawn("rank 2", sh("kill -9 $$"), &log.path(), |_| {}).unwrap();
        assert_eq!(
            children.next_exit().await.unwrap().to_string(),
            "rank 2 ended (signal: 9 (SIGKILL))"
        );
    }

    #[tokio::test]
    async fn lines_of_stdout_arrive_whole_and_before_the_exit() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = lines.clone();
        let on_line = move |line: &str| seen.lock().unwrap().push(line.to_owned());
        children
            .spawn("fetch", sh("printf 'one\\ntwo\\r\\nlast'"), &log.path(), on_line)
            .unwrap();
        assert!(children.next_exit().await.unwrap().success());
        assert_eq!(*lines.lock().unwrap(), ["one", "two", "last"]);
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_into_pieces() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        let (send, lengths) = mpsc::channel();
        let script = "head -c 150000 /dev/zero | tr '\\0' x";
        children
            .spawn("fetch", sh(script), &log.path(), move |line| {
                send.send(line.len()).unwrap();
            })
            .unwrap();
        assert!(children.next_exit().await.unwrap().success());
        let lengths: Vec<usize> = lengths.iter().collect();
        assert_eq!(lengths.iter().sum::<usize>(), 150_000);
        assert!(lengths.iter().all(|length| *length <= KEPT));
    }

    #[tokio::test]
    async fn children_are_asked_to_end_and_killed_after_the_grace() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_millis(300)));
        let (send, started) = mpsc::channel();
        for (name, trap) in [("polite", "trap 'echo bye >&2; exit 0' TERM"), ("deaf", "trap '' TERM")] {
            let send = send.clone();
            let script = format!("{trap}; echo up; while :; do sleep 0.05; done");
            children
                .spawn(name, sh(&script), &log.path(), move |line| {
                    send.send(line.to_owned()).unwrap();
                })
                .unwrap();
        }
        let both = tokio::task::spawn_blocking(move || (started.recv().unwrap(), started.recv().unwrap()));
        assert_eq!(both.await.unwrap(), ("up".to_owned(), "up".to_owned()));
        let begun = Instant::now();
        let mut exits: Vec<String> = children.end().await.iter().map(Exit::to_string).collect();
        exits.sort();
        assert_eq!(
            exits,
            ["deaf ended (signal: 9 (SIGKILL))", "polite ended (exit status: 0): bye"]
        );
        assert!(
            begun.elapsed() >= Duration::from_millis(300),
            "the deaf one had its grace"
        );
    }

    #[tokio::test]
    async fn one_child_is_ended_and_the_others_live_on() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        let first = children.spawn("first", sh("exec cat"), &log.path(), |_| {}).unwrap();
        let second = children.spawn("second", sh("exec cat"), &log.path(), |_| {}).unwrap();
        let alive = |id: u32| kvasir_tests::process::is_alive(id);
        children.end_one(first).await;
        assert!(!alive(first) && alive(second));
        // one that is gone already is waited for no more
        children.end_one(first).await;
        let exits = children.end().await;
        assert_eq!(
            exits.iter().map(|exit| exit.name.as_str()).collect::<Vec<_>>(),
            ["second"]
        );
        assert!(!alive(second));
    }

    #[tokio::test]
    async fn stdin_stays_open_while_the_child_is_watched() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        let mark = log.0.path().join("mark");
        let script = format!("cat > /dev/null; echo ended > {}", mark.display());
        children.spawn("reader", sh(&script), &log.path(), |_| {}).unwrap();
        let early = timeout(Duration::from_millis(200), children.next_exit()).await;
        assert!(early.is_err(), "the child read end of file although we live: {early:?}");
        children.end().await;
        assert!(!mark.exists(), "SIGTERM came first");
    }

    #[tokio::test]
    async fn a_grandchild_that_holds_the_pipes_does_not_hold_us() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        children
            .spawn("parent", sh("sleep 30 & exit 3"), &log.path(), |_| {})
            .unwrap();
        let exit = timeout(Duration::from_secs(10), children.next_exit())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(exit.status.and_then(|status| status.code()), Some(3));
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_an_error_at_once() {
        let (log, mut children) = (Log::new(), Children::new(Duration::from_secs(10)));
        let error = children
            .spawn("none", Command::new("/no/such/program"), &log.path(), |_| {})
            .unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}
