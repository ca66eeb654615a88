//! The arrays of a `llama_batch`.

use crate::batch::Call;
use crate::model::Model;
use llama_cpp_sys_2 as sys;

/// What goes in: one value per row, or one embedding.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input<'a> {
    Tokens(&'a [i32]),
    Hidden(&'a [f32]),
}

/// The arrays that a `llama_batch` points to, kept for the next call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<sys::llama_token>,
    hidden: Vec<f32>,
    positions: Vec<sys::llama_pos>,
    counts: Vec<i32>,
    sequences: Vec<sys::llama_seq_id>,
    sequence_pointers: Vec<*mut sys::llama_seq_id>,
    outputs: Vec<i8>,
}

impl Batch {
    /// Fills the arrays for one call. The result points into `self` and, for one contiguous run of rows, into `input`.
    pub(crate) fn fill(
        &mut self,
        call: &Call,
        input: Input<'_>,
        model: &Model,
        is_output: impl Fn(usize) -> bool,
    ) -> sys::llama_batch {
        let rows = call.rows();
        self.positions.clear();
        self.sequences.clear();
        self.outputs.clear();
        for part in &call.parts {
            self.positions
                .extend((part.position..part.position + part.count).map(|position| position as i32));
            self.sequences
                .extend(std::iter::repeat_n(part.slot as i32, part.count as usize));
        }
        self.outputs.extend(call.order().map(|row| i8::from(is_output(row))));
        self.counts.clear();
        self.counts.resize(rows, 1);
        self.sequence_pointers.clear();
        self.sequence_pointers
            .extend(self.sequences.iter_mut().map(std::ptr::from_mut));

        let (mut token, mut embd) = (std::ptr::null_mut(), std::ptr::null_mut());
        match input {
            Input::Tokens(tokens) => {
                self.tokens.clear();
                self.tokens.extend(call.order().map(|row| tokens[row]));
                token = self.tokens.as_mut_ptr();
            }
            // written over in the graph: any token will do, and every file has the first one
            Input::Hidden(_) if model.input_node().is_some() => {
                self.tokens.clear();
                self.tokens.resize(rows, 0);
                token = self.tokens.as_mut_ptr();
            }
            Input::Hidden(values) => {
                let width = model.embedding_length();
                let of = |row: usize, count: usize| &values[row * width..(row + count) * width];
                embd = if let [part] = call.parts[..] {
                    // llama.cpp only reads it
                    of(part.row, part.count as usize).as_ptr().cast_mut()
                } else {
                    self.hidden.clear();
                    for part in &call.parts {
                        self.hidden.extend_from_slice(of(part.row, part.count as usize));
                    }
                    self.hidden.as_mut_ptr()
                };
                if model.position_sections() == 4 {
                    // M-RoPE wants hidden states' positions section by section: time, height, width, and a fourth of 0
                    self.positions.extend_from_within(..rows);
                    self.positions.extend_from_within(..rows);
                    self.positions.resize(4 * rows, 0);
                }
            }
        }
        sys::llama_batch {
            n_tokens: rows as i32,
            token,
            embd,
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.counts.as_mut_ptr(),
            seq_id: self.sequence_pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }

    /// Rows of the last call that were marked as outputs.
    pub(crate) fn output_rows(&self) -> usize {
        self.outputs.iter().filter(|&&output| output != 0).count()
    }
}
