//! llama.cpp as a whole: initialised once in a process, in one of two modes.

use crate::error::EngineError;
use crate::log;
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;
use std::sync::Mutex;

/// Which kernels the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// the fastest kernels there are; a token's logits depend in the last bits on what else is in its batch
    Fast,
    /// the process can also run exact windows. Windows that aren't exact work too, with slower prompts: the tiled
    /// matrix kernels are off for the whole process, since ggml reads their switch once
    Exact,
}

/// llama.cpp, ready for use: proof that the CPU will do, that its log is caught, and that its mode is settled.
#[derive(Debug)]
pub struct Backend {
    mode: Mode,
}

static FAST: Backend = Backend { mode: Mode::Fast };
static EXACT: Backend = Backend { mode: Mode::Exact };
static CHOSEN: Mutex<Option<&'static Backend>> = Mutex::new(None);

impl Backend {
    /// Initialises llama.cpp, once: later calls return the same backend, and one that asks for [`Mode::Exact`] after
    /// [`Mode::Fast`] is refused. [`Mode::Exact`] sets an environment variable: call it before starting threads.
    ///
    /// # Errors
    /// [`EngineError::UnsupportedCpu`]; [`EngineError::NotExact`] when the process is in fast mode already.
    pub fn init(mode: Mode) -> Result<&'static Backend, EngineError> {
        let mut chosen = CHOSEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(backend) = *chosen {
            return if mode == Mode::Exact && backend.mode == Mode::Fast {
                Err(EngineError::NotExact)
            } else {
                Ok(backend)
            };
        }
        check_cpu()?;
        let backend = match mode {
            Mode::Fast => &FAST,
            Mode::Exact => {
                switch_off_tiled_kernels();
                &EXACT
            }
        };
        log::install();
        // SAFETY: called once, under the lock, before any other use of llama.cpp.
        unsafe {
            sys::llama_backend_init();
        }
        *chosen = Some(backend);
        Ok(backend)
    }

    /// Mode that the process runs in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The processor and the instruction sets that the kernels use, for logs and reports.
    pub fn describe(&self) -> String {
        // SAFETY: the device is the built-in CPU or null, which is checked; both strings are static in ggml.
        let (name, features) = unsafe {
            let cpu = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
            let name = if cpu.is_null() {
                c"CPU"
            } else {
                CStr::from_ptr(sys::ggml_backend_dev_description(cpu))
            };
            (
                name.to_string_lossy(),
                CStr::from_ptr(sys::llama_print_system_info()).to_string_lossy(),
            )
        };
        format!("{name} ({})", features.trim_end_matches([' ', '|']))
    }
}

/// ggml reads `GGML_CPU_TILED_MM` at its first matrix product, once per process.
fn switch_off_tiled_kernels() {
    // SAFETY: documented on `Backend::init`: called before the program starts threads that read the environment.
    unsafe { std::env::set_var("GGML_CPU_TILED_MM", "0") }
}

/// A static build of ggml has its instruction sets compiled in and would die of SIGILL without them.
fn check_cpu() -> Result<(), EngineError> {
    #[cfg(target_arch = "x86_64")]
    {
        let has = [
            ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
            ("FMA", std::arch::is_x86_feature_detected!("fma")),
            ("F16C", std::arch::is_x86_feature_detected!("f16c")),
            ("BMI2", std::arch::is_x86_feature_detected!("bmi2")),
        ];
        let missing: Vec<&str> = has.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            return Err(EngineError::UnsupportedCpu {
                missing: missing.join(", "),
            });
        }
    }
    Ok(())
}
