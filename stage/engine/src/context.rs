//! A model with its cache and threads, run batch by batch. Every precondition of llama.cpp is checked here, since it
//! aborts the process where one is hurt.

use crate::arrays::{Batch, Input};
use crate::batch::{self, Call};
use crate::error::EngineError;
use crate::log;
use crate::model::Model;
use crate::nodes::{self, Capture, Nodes, Overwrite};
use crate::size::{self, Footprint};
use crate::window::{CacheType, Output, Span, WindowOptions};
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Context {
    pointer: NonNull<sys::llama_context>,
    threads: NonNull<sys::ggml_threadpool>,
    nodes: Box<Nodes>,
    batch: Batch,
    /// positions computed, by slot
    held: Vec<u32>,
    footprint: Footprint,
    context_length: u32,
    max_rows: u32,
    microbatch: u32,
    output: Output,
    whole_cache: bool,
    model: Arc<Model>,
}

// SAFETY: the context, its threads and the pointers inside `batch`, which point into the same struct's heap blocks and
// are rebuilt for every call, are used by one thread at a time: all methods that run them take `&mut self`.
unsafe impl Send for Context {}
// SAFETY: methods that take `&self` only read plain fields.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(model: Arc<Model>, options: &WindowOptions) -> Result<Context, EngineError> {
        let capture = match options.output {
            Output::Hidden => Some(Capture::of(format!("l_out-{}", i64::from(model.layers()) - 1))),
            Output::Logits { .. } => None,
        };
        Context::capturing(model, options, capture)
    }

    pub(crate) fn capturing(
        model: Arc<Model>,
        options: &WindowOptions,
        capture: Option<Capture>,
    ) -> Result<Context, EngineError> {
        let mut nodes = Box::new(Nodes {
            overwrite: model.input_node().map(|name| Overwrite::of(name.to_owned())),
            capture,
        });
        let context_length = size::check(options)?;
        let microbatch = size::microbatch(model.embedding_length(), model.heads(), options).min(options.max_rows);
        let whole_cache = options.exact || options.whole_cache;

        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = context_length * options.sequences;
        params.n_batch = microbatch;
        params.n_ubatch = microbatch;
        params.n_seq_max = options.sequences;
        params.kv_unified = false;
        params.swa_full = whole_cache;
        params.n_threads = thread_count(options.threads);
        params.n_threads_batch = params.n_threads;
        params.no_perf = true;
        params.flash_attn_type = if options.exact {
            sys::LLAMA_FLASH_ATTN_TYPE_DISABLED
        } else {
            sys::LLAMA_FLASH_ATTN_TYPE_AUTO
        };
        params.type_k = match options.cache_type {
            CacheType::F16 => sys::GGML_TYPE_F16,
            CacheType::Q8_0 => sys::GGML_TYPE_Q8_0,
        };
        params.type_v = params.type_k;
        // The logits buffer is touched in full when it is made; llama.cpp wants room for a row of each sequence.
        params.n_outputs_max = match options.output {
            Output::Hidden => microbatch.max(options.sequences),
            Output::Logits { max_rows } => max_rows.min(microbatch).max(options.sequences),
        };
        if !nodes.is_empty() {
            params.cb_eval = Some(nodes::on_node);
            params.cb_eval_user_data = nodes.user_data();
        }

        // SAFETY: the model is loaded and outlives the context; the nodes are boxed, so their address stays.
        let (pointer, said) = log::listen(|| unsafe { sys::llama_init_from_model(model.as_ptr(), params) });
        let failed = |detail| EngineError::Context {
            path: model.path().to_owned(),
            detail,
        };
        let pointer = NonNull::new(pointer).ok_or_else(|| failed(said.why()))?;
        let Some(threads) = attach_threads(pointer, params.n_threads) else {
            // SAFETY: made above and used by nobody else.
            unsafe {
                sys::llama_free(pointer.as_ptr());
            }
            return Err(failed("its threads could not be started".to_owned()));
        };
        Ok(Context {
            pointer,
            threads,
            nodes,
            batch: Batch::default(),
            held: vec![0; options.sequences as usize],
            footprint: Footprint::of(&said),
            context_length: options.context_length,
            max_rows: options.max_rows,
            microbatch,
            output: options.output,
            whole_cache,
            model,
        })
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(crate) fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// Positions that a slot holds.
    pub(crate) fn held(&self, slot: u32) -> u32 {
        self.held.get(slot as usize).copied().unwrap_or(0)
    }

    /// Runs spans and returns the residual rows of the last layer, in the order that the rows came in.
    pub(crate) fn run_hidden(
        &mut self,
        spans: &[Span],
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        if self.nodes.capture.is_none() {
            return Err(EngineError::Output { gives: "logits" });
        }
        let rows = self.check_batch(spans, input)?;
        let width = self.model.embedding_length();
        out.clear();
        out.resize(rows * width, 0.0);
        let result = batch::plan(spans, self.microbatch)
            .iter()
            .try_for_each(|call| self.hidden_of(call, input, out));
        result.inspect_err(|_| self.forget(spans))
    }

    fn hidden_of(&mut self, call: &Call, input: Input<'_>, out: &mut [f32]) -> Result<(), EngineError> {
        self.decode(call, input, |_| true)?;
        let width = self.model.embedding_length();
        let expected = call.rows() * width;
        match &self.nodes.capture {
            Some(capture) if capture.rows().len() == expected => {
                let rows = call.order().zip(capture.rows().chunks_exact(width));
                copy_finite(rows, |row, values| {
                    out[row * width..(row + 1) * width].copy_from_slice(values);
                })
            }
            other => Err(EngineError::NoBoundary {
                architecture: self.model.architecture().to_owned(),
                tensor: other
                    .as_ref()
                    .map_or_else(String::new, |capture| capture.name().to_owned()),
                got: other.as_ref().map_or(0, |capture| capture.rows().len()),
                expected,
            }),
        }
    }

    /// Runs spans and returns the logits of the wanted rows, in the order of `want`.
    pub(crate) fn run_logits(
        &mut self,
        spans: &[Span],
        input: Input<'_>,
        want: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let Output::Logits { max_rows } = self.output else {
            return Err(EngineError::Output { gives: "hidden states" });
        };
        let rows = self.check_batch(spans, input)?;
        if let Some(&row) = want.iter().find(|&&row| row as usize >= rows) {
            return Err(EngineError::WantedRow { row, rows });
        }
        if want.len() > max_rows as usize {
            return Err(EngineError::TooManyRows {
                rows: want.len() as u64,
                limit: max_rows,
            });
        }
        out.clear();
        out.resize(want.len() * self.model.vocabulary_length(), 0.0);
        let result = batch::plan(spans, self.microbatch)
            .iter()
            .try_for_each(|call| self.logits_of(call, input, want, out));
        result.inspect_err(|_| self.forget(spans))
    }

    fn logits_of(&mut self, call: &Call, input: Input<'_>, want: &[u32], out: &mut [f32]) -> Result<(), EngineError> {
        let wanted = |row: usize| want.contains(&(row as u32));
        self.decode(call, input, wanted)?;
        let width = self.model.vocabulary_length();
        let rows = call.order().filter(|&row| wanted(row)).zip(self.logits(width));
        copy_finite(rows, |row, values| {
            for place in (0..want.len()).filter(|&place| want[place] as usize == row) {
                out[place * width..(place + 1) * width].copy_from_slice(values);
            }
        })
    }

    /// Rows of logits of the last call, in the order of its rows.
    fn logits(&self, width: usize) -> std::slice::ChunksExact<'_, f32> {
        let rows = self.batch.output_rows();
        if rows == 0 {
            return [].chunks_exact(width);
        }
        // SAFETY: after a successful decode llama.cpp's buffer holds a row of the vocabulary's length for each row
        // marked as an output, in the batch's order, until the next decode, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(sys::llama_get_logits(self.pointer.as_ptr()), rows * width) }
            .chunks_exact(width)
    }

    /// Checks spans and input; returns the number of rows.
    fn check_batch(&self, spans: &[Span], input: Input<'_>) -> Result<usize, EngineError> {
        let mut seen = vec![false; self.held.len()];
        let mut rows = 0_u64;
        for &Span { slot, position, count } in spans {
            let held = self.known(slot)?;
            if std::mem::replace(&mut seen[slot as usize], true) {
                return Err(EngineError::DuplicateSlot { slot });
            }
            if count == 0 {
                return Err(EngineError::EmptySpan { slot });
            }
            if position != held {
                return Err(EngineError::Position { slot, held, position });
            }
            let length = u64::from(position) + u64::from(count);
            if length > u64::from(self.context_length) {
                return Err(EngineError::ContextFull {
                    slot,
                    length,
                    context_length: self.context_length,
                });
            }
            rows += u64::from(count);
        }
        if rows > u64::from(self.max_rows) {
            return Err(EngineError::TooManyRows {
                rows,
                limit: self.max_rows,
            });
        }
        let rows = rows as usize;
        let (got, expected) = match input {
            Input::Tokens(tokens) => (tokens.len(), rows),
            Input::Hidden(values) => (values.len(), rows * self.model.embedding_length()),
        };
        if got != expected {
            return Err(EngineError::InputLength { got, expected });
        }
        self.check_values(input)?;
        Ok(rows)
    }

    fn check_values(&self, input: Input<'_>) -> Result<(), EngineError> {
        match input {
            Input::Tokens(tokens) => {
                let vocabulary = self.model.vocabulary_length();
                let missing = |token: i32| usize::try_from(token).map_or(true, |token| token >= vocabulary);
                match tokens.iter().find(|&&token| missing(token)) {
                    Some(&token) => Err(EngineError::Token { token, vocabulary }),
                    None => Ok(()),
                }
            }
            Input::Hidden(values) => match values.iter().position(|value| !value.is_finite()) {
                Some(at) => Err(EngineError::InputNotFinite {
                    row: at / self.model.embedding_length(),
                }),
                None => Ok(()),
            },
        }
    }

    /// Positions held by a slot that must exist.
    fn known(&self, slot: u32) -> Result<u32, EngineError> {
        let unknown = EngineError::Slot {
            slot,
            sequences: self.held.len() as u32,
        };
        self.held.get(slot as usize).copied().ok_or(unknown)
    }

    /// Forgets what a failed batch may have computed, or where that can't be done, all that its slots held.
    fn forget(&mut self, spans: &[Span]) {
        for span in spans {
            if self.truncate(span.slot, span.position).is_err() {
                self.clear(span.slot);
            }
        }
    }

    /// One call of `llama_decode`.
    fn decode(&mut self, call: &Call, input: Input<'_>, is_output: impl Fn(usize) -> bool) -> Result<(), EngineError> {
        let batch = self.batch.fill(call, input, &self.model, is_output);
        let width = self.model.embedding_length();
        let rows = call.order().filter_map(|row| match input {
            Input::Hidden(values) => values.get(row * width..(row + 1) * width),
            Input::Tokens(_) => None,
        });
        self.nodes.begin(rows);
        // SAFETY: the batch's arrays are as long as it says and outlive the call; rows, positions, sequences and
        // tokens are in range (`check_batch`), and the rows fit `n_batch` (`batch::plan`). The pool is this context's own.
        let (code, said) = log::listen(|| unsafe {
            sys::ggml_threadpool_resume(self.threads.as_ptr());
            let code = sys::llama_decode(self.pointer.as_ptr(), batch);
            sys::ggml_threadpool_pause(self.threads.as_ptr());
            code
        });
        for part in &call.parts {
            self.held[part.slot as usize] = part.position + part.count;
        }
        if code != 0 {
            return Err(EngineError::Decode {
                code,
                detail: said.why(),
            });
        }
        match &self.nodes.overwrite {
            Some(node) if !node.is_done() => {
                let (got, expected) = node.taken();
                Err(EngineError::NoInput {
                    architecture: self.model.architecture().to_owned(),
                    tensor: node.name().to_owned(),
                    got,
                    expected,
                })
            }
            _ => Ok(()),
        }
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is live.
        unsafe { sys::llama_get_memory(self.pointer.as_ptr()) }
    }

    /// Forgets all that a slot holds; a slot out of range holds nothing.
    pub(crate) fn clear(&mut self, slot: u32) {
        let Some(held) = self.held.get_mut(slot as usize) else {
            return;
        };
        *held = 0;
        // SAFETY: the slot is in range.
        unsafe { sys::llama_memory_seq_rm(self.memory(), slot as i32, -1, -1) };
    }

    /// Makes slot `to` a copy of slot `from`'s first `length` positions.
    pub(crate) fn copy(&mut self, from: u32, to: u32, length: u32) -> Result<(), EngineError> {
        let held = self.known(from)?;
        self.known(to)?;
        self.check_truncate(from, length)?;
        if from == to {
            return self.truncate(to, length);
        }
        self.clear(to);
        if length > 0 {
            // SAFETY: both slots are in range and differ.
            unsafe { sys::llama_memory_seq_cp(self.memory(), from as i32, to as i32, -1, -1) };
            self.held[to as usize] = held;
            self.truncate(to, length)?;
        }
        Ok(())
    }

    /// Keeps a slot's first `length` positions.
    pub(crate) fn truncate(&mut self, slot: u32, length: u32) -> Result<(), EngineError> {
        self.check_truncate(slot, length)?;
        if length == 0 {
            self.clear(slot);
        } else if length < self.held(slot) {
            // SAFETY: the slot is in range.
            let cut = unsafe { sys::llama_memory_seq_rm(self.memory(), slot as i32, length as i32, -1) };
            if !cut {
                let why = "llama.cpp refused";
                return Err(EngineError::Truncate {
                    slot,
                    held: self.held(slot),
                    length,
                    why,
                });
            }
            self.held[slot as usize] = length;
        }
        Ok(())
    }

    fn check_truncate(&self, slot: u32, length: u32) -> Result<(), EngineError> {
        let held = self.known(slot)?;
        if length > held {
            return Err(EngineError::Length { slot, held, length });
        }
        if length == held || length == 0 {
            return Ok(());
        }
        if self.model.has_state() {
            let why = "its recurrent state does not remember earlier positions";
            return Err(EngineError::Truncate {
                slot,
                held,
                length,
                why,
            });
        }
        if let Some(window) = self.model.sliding_window()
            && !self.whole_cache
        {
            // SAFETY: the slot is in range.
            let oldest = unsafe { sys::llama_memory_seq_pos_min(self.memory(), slot as i32) };
            if oldest > (length as i32 - window as i32 + 1).max(0) {
                let why = "its sliding-window layers have forgotten the positions before";
                return Err(EngineError::Truncate {
                    slot,
                    held,
                    length,
                    why,
                });
            }
        }
        Ok(())
    }
}

/// Passes rows on to `copy`, and stops at one that is not finite.
fn copy_finite<'a>(
    rows: impl Iterator<Item = (usize, &'a [f32])>,
    mut copy: impl FnMut(usize, &'a [f32]),
) -> Result<(), EngineError> {
    for (row, values) in rows {
        if !values.iter().all(|value| value.is_finite()) {
            return Err(EngineError::OutputNotFinite { row });
        }
        copy(row, values);
    }
    Ok(())
}

/// Threads to use: those asked for, or the physical cores that this process may run on.
fn thread_count(asked: u32) -> i32 {
    let threads = if asked == 0 {
        crate::threads::physical_cores()
    } else {
        asked
    };
    threads.clamp(1, 512) as i32
}

/// Gives the context threads of its own. They are paused between calls, so that idle stages leave the CPU alone; a call
/// wakes them at its start, and they poll while llama.cpp makes the batch ready, which takes about as long as waking up.
fn attach_threads(context: NonNull<sys::llama_context>, count: i32) -> Option<NonNull<sys::ggml_threadpool>> {
    // SAFETY: the parameters are a plain struct that ggml copies; the pool outlives the context (`Drop`).
    unsafe {
        let mut params = sys::ggml_threadpool_params_default(count);
        params.poll = 1;
        params.paused = true;
        let pool = NonNull::new(sys::ggml_threadpool_new(&raw mut params))?;
        sys::llama_attach_threadpool(context.as_ptr(), pool.as_ptr(), std::ptr::null_mut());
        Some(pool)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: both were made in `new` and are freed once, the context before the threads and the model it uses.
        unsafe {
            sys::llama_free(self.pointer.as_ptr());
            sys::ggml_threadpool_free(self.threads.as_ptr());
        }
    }
}
