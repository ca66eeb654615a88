//! How many threads pay off: matrix products gain nothing from a core's second hardware thread.

use std::collections::HashSet;

/// Physical cores that this process may use: at most what the scheduler and the control group allow, and where the
/// system tells (Linux), at most the cores that there are.
pub(crate) fn physical_cores() -> u32 {
    let allowed = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = (0..4096)
        .map_while(|cpu| {
            std::fs::read_to_string(format!(
                "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            ))
            .ok()
        })
        .collect::<HashSet<String>>()
        .len();
    let threads = if cores == 0 { allowed } else { allowed.min(cores) };
    threads as u32
}
