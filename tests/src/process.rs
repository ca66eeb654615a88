//! What the system says about a process: its children, memory, processor time.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Process ids of the direct children of `parent`.
pub fn children(parent: u32) -> Vec<u32> {
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let ids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    let mut children: Vec<u32> = ids.filter(|&id| stat(id).is_some_and(|s| s.parent == parent)).collect();
    children.sort_unstable();
    children
}

/// Arguments that a process was started with; empty when it is gone.
pub fn arguments(id: u32) -> Vec<String> {
    let raw = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    raw.split(|&byte| byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

/// Whether a process is there and not a zombie.
pub fn is_alive(id: u32) -> bool {
    stat(id).is_some_and(|s| s.state != 'Z')
}

/// Memory that a process holds, in bytes: its private pages, and its share of those that it has in common with others.
pub fn resident_bytes(id: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).ok()?;
    let line = rollup.lines().find(|line| line.starts_with("Pss:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Processor time that a process has used so far.
pub fn processor_time(id: u32) -> Option<Duration> {
    // in ticks of 10 ms on every Linux of today (USER_HZ)
    stat(id).map(|s| Duration::from_millis(s.ticks * 10))
}

/// Sends a signal; false when the process is gone.
pub fn signal(id: u32, signal: Signal) -> bool {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(id, signal).is_ok()
}

/// A program that runs beside a test, and is killed with it.
#[derive(Debug)]
pub struct Background(Child);

impl Background {
    /// Starts it; what it prints is added to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let error = log.try_clone().unwrap();
        Background(command.stdin(Stdio::null()).stdout(log).stderr(error).spawn().unwrap())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Stat {
    state: char,
    parent: u32,
    ticks: u64,
}

/// proc(5): the fields after the name, which stands in parentheses and may hold anything.
fn stat(id: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        ticks: fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_seen_while_it_lives() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        assert!(children(std::process::id()).contains(&id));
        assert!(is_alive(id));
        assert!(resident_bytes(id).unwrap() > 4096);
        assert!(processor_time(id).unwrap() < Duration::from_secs(1));
        assert!(signal(id, Signal::KILL));
        child.wait().unwrap();
        assert!(!is_alive(id));
        assert!(!signal(id, Signal::KILL));
    }
}
