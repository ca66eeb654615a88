//! llama.cpp's log: every line goes to `tracing`, and what a call said is kept to enrich its error.

use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;

/// Lines kept of one call; the last ones say why it failed.
const KEPT: usize = 64;
/// What the lines say that tell the sizes of a context's buffers.
pub(crate) const BUFFER_SIZE: &str = "buffer size =";

/// What the lines say that name a tensor which the model has a use for, or which it knows and leaves out.
const OF_TENSORS: [&str; 2] = ["loading tensor ", "model has unused tensor "];

thread_local! {
    static SAID: RefCell<Option<Said>> = const { RefCell::new(None) };
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    level: sys::ggml_log_level,
    pub(crate) text: String,
}

/// What llama.cpp told on this thread during one call.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// warnings, errors and buffer sizes
    lines: Vec<Line>,
    /// names of the tensors that it took
    tensors: HashSet<String>,
}

impl Said {
    /// The last error, or else the last warning; llama.cpp names the cause first and then who gave up, so an error
    /// that says only "failed to load model" is passed over when there is a better one.
    pub(crate) fn why(&self) -> String {
        let of = |level| {
            self.lines
                .iter()
                .filter(move |l| l.level == level)
                .map(|l| l.text.as_str())
        };
        let errors: Vec<&str> = of(sys::GGML_LOG_LEVEL_ERROR).collect();
        let vague = |text: &&&str| !text.ends_with("failed to load model") && !text.contains("failed to decode, ret");
        errors
            .iter()
            .rev()
            .find(vague)
            .or(errors.last())
            .copied()
            .or_else(|| of(sys::GGML_LOG_LEVEL_WARN).next_back())
            .map_or_else(|| "llama.cpp did not say why".to_owned(), without_function)
    }

    /// Whether it took the tensor of this name.
    pub(crate) fn took(&self, tensor: &str) -> bool {
        self.tensors.contains(tensor)
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.text.as_str())
    }
}

/// Drops the leading `function_name: ` of llama.cpp's log lines.
fn without_function(line: &str) -> String {
    match line.split_once(": ") {
        Some((name, rest)) if !name.contains(' ') => rest.trim().to_owned(),
        _ => line.trim().to_owned(),
    }
}

/// Runs `call` and keeps what llama.cpp says meanwhile on this thread.
pub(crate) fn listen<T>(call: impl FnOnce() -> T) -> (T, Said) {
    SAID.with_borrow_mut(|said| *said = Some(Said::default()));
    let result = call();
    let said = SAID.with_borrow_mut(Option::take);
    (result, said.unwrap_or_default())
}

/// Sends llama.cpp's and ggml's log to `tracing`, and the text of an abort before the process dies of it.
pub(crate) fn install() {
    // SAFETY: both functions are `extern "C"`, never unwind and live as long as the process.
    unsafe {
        sys::llama_log_set(Some(on_line), std::ptr::null_mut());
        sys::ggml_set_abort_callback(Some(on_abort));
    }
}

unsafe extern "C" fn on_line(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: ggml passes a zero-terminated string that lives for the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim_end();
    if text.is_empty() || level == sys::GGML_LOG_LEVEL_CONT {
        return;
    }
    if level == sys::GGML_LOG_LEVEL_ERROR {
        tracing::warn!(target: "llama.cpp", "{text}");
    } else {
        tracing::debug!(target: "llama.cpp", "{text}");
    }
    let of_use = matches!(level, sys::GGML_LOG_LEVEL_WARN | sys::GGML_LOG_LEVEL_ERROR) || text.contains(BUFFER_SIZE);
    SAID.with_borrow_mut(|said| {
        let Some(said) = said else { return };
        let of_tensor = OF_TENSORS.iter().find_map(|told| text.split_once(told));
        if let Some((_, name)) = of_tensor {
            said.tensors.extend(name.split(' ').next().map(str::to_owned));
        }
        if of_use {
            let lines = &mut said.lines;
            if lines.len() == KEPT {
                lines.remove(0);
            }
            lines.push(Line {
                level,
                text: text.to_owned(),
            });
        }
    });
}

/// The process dies right after: the text must not be lost, whether or not anybody listens to `tracing`.
unsafe extern "C" fn on_abort(text: *const c_char) {
    // SAFETY: ggml passes a zero-terminated string that lives for the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if tracing::dispatcher::has_been_set() {
        tracing::error!(target: "llama.cpp", "llama.cpp aborts the process: {text}");
    } else {
        let _ = writeln!(std::io::stderr(), "llama.cpp aborts the process: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[(sys::ggml_log_level, &str)]) -> Said {
        let lines = lines.iter().map(|&(level, text)| Line {
            level,
            text: text.to_owned(),
        });
        Said {
            lines: lines.collect(),
            ..Said::default()
        }
    }

    #[test]
    fn the_cause_is_preferred_to_who_gave_up() {
        let said = said(&[
            (sys::GGML_LOG_LEVEL_INFO, "load: hello"),
            (
                sys::GGML_LOG_LEVEL_ERROR,
                "llama_model_load: error loading model: missing tensor 'x'",
            ),
            (
                sys::GGML_LOG_LEVEL_ERROR,
                "llama_model_load_from_file_impl: failed to load model",
            ),
        ]);
        assert_eq!(said.why(), "error loading model: missing tensor 'x'");
    }

    #[test]
    fn a_silent_failure_says_so() {
        assert_eq!(said(&[]).why(), "llama.cpp did not say why");
    }
}
