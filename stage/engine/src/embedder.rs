//! Rank 0's way in: rows of the token embedding, read from the file one by one, so that the matrix never sits in memory.

use crate::error::EngineError;
use crate::log;
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const TENSOR: &CStr = c"token_embd.weight";

/// Turns tokens into the hidden states that the first window takes.
#[derive(Debug)]
pub struct Embedder {
    file: File,
    path: PathBuf,
    /// of the tensor in the file
    offset: u64,
    row_bytes: usize,
    width: usize,
    rows: usize,
    /// none for F32, which is as it should be
    dequantize: Option<unsafe extern "C" fn(*const std::ffi::c_void, *mut f32, i64)>,
    scale: f32,
}

impl Embedder {
    /// Finds `token_embd.weight` in a GGUF file. `scale` is what the architecture multiplies token embeddings by
    /// (Gemma: √embedding length), in f32 as llama.cpp does.
    ///
    /// # Errors
    /// Names what is wrong with the file.
    pub fn open(path: &Path, scale: f32) -> Result<Embedder, EngineError> {
        let unreadable = |source| EngineError::Read {
            path: path.to_owned(),
            source,
        };
        let damaged = |detail: String| EngineError::NotGguf {
            path: path.to_owned(),
            detail,
        };
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| EngineError::Path { path: path.to_owned() })?;

        let params = sys::gguf_init_params {
            no_alloc: true,
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the name is zero-terminated; with `no_alloc` and no context only metadata is read.
        let (gguf, said) = log::listen(|| unsafe { sys::gguf_init_from_file(name.as_ptr(), params) });
        if gguf.is_null() {
            return Err(damaged(said.why()));
        }
        // SAFETY: `gguf` is live until it is freed here; the tensor's id is checked before it is used; `ne` points to
        // four numbers; the type was checked by the reader, so it has traits.
        let found = unsafe {
            let id = sys::gguf_find_tensor(gguf, TENSOR.as_ptr());
            let found = (id >= 0).then(|| {
                let shape = sys::gguf_get_tensor_ne(gguf, id);
                let kind = sys::gguf_get_tensor_type(gguf, id);
                let offset = sys::gguf_get_data_offset(gguf) as u64 + sys::gguf_get_tensor_offset(gguf, id) as u64;
                let bytes = sys::gguf_get_tensor_size(gguf, id) as u64;
                (kind, *shape, *shape.add(1), offset, bytes)
            });
            sys::gguf_free(gguf);
            found
        };
        let (kind, width, rows, offset, bytes) =
            found.ok_or_else(|| damaged(format!("it has no {}", TENSOR.to_string_lossy())))?;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(damaged(format!("it ends before {} does", TENSOR.to_string_lossy())));
        }
        // SAFETY: as above.
        let (row_bytes, traits) = unsafe { (sys::ggml_row_size(kind, width), &*sys::ggml_get_type_traits(kind)) };
        if traits.to_float.is_none() && kind != sys::GGML_TYPE_F32 {
            return Err(damaged(format!(
                "{} is of a type without a way back to floats",
                TENSOR.to_string_lossy()
            )));
        }
        Ok(Embedder {
            file,
            path: path.to_owned(),
            offset,
            row_bytes,
            width: width as usize,
            rows: rows as usize,
            dequantize: traits.to_float.filter(|_| kind != sys::GGML_TYPE_F32),
            scale,
        })
    }

    /// Values of one row.
    pub fn embedding_length(&self) -> usize {
        self.width
    }

    /// Rows that there are: the vocabulary's length.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Embeddings of tokens: tokens × embedding length values, replacing what `out` held.
    ///
    /// # Errors
    /// [`EngineError::Token`] for ids out of range; [`EngineError::Read`] when the file can't be read any more.
    pub fn rows(&self, tokens: &[i32], out: &mut Vec<f32>) -> Result<(), EngineError> {
        let row = |token: i32| usize::try_from(token).ok().filter(|&row| row < self.rows);
        if let Some(&token) = tokens.iter().find(|&&token| row(token).is_none()) {
            return Err(EngineError::Token {
                token,
                vocabulary: self.rows,
            });
        }
        out.clear();
        out.resize(tokens.len() * self.width, 0.0);
        let mut bytes = vec![0; self.row_bytes];
        for (row, values) in tokens
            .iter()
            .filter_map(|&token| row(token))
            .zip(out.chunks_exact_mut(self.width))
        {
            let at = self.offset + row as u64 * self.row_bytes as u64;
            self.file
                .read_exact_at(&mut bytes, at)
                .map_err(|source| EngineError::Read {
                    path: self.path.clone(),
                    source,
                })?;
            match self.dequantize {
                // SAFETY: `bytes` is one row of the tensor's type and `values` has the row's length.
                Some(dequantize) => unsafe {
                    dequantize(bytes.as_ptr().cast(), values.as_mut_ptr(), self.width as i64);
                },
                None => {
                    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                        *value = f32::from_le_bytes(*bytes);
                    }
                }
            }
            // bits are kept where there is nothing to scale
            if (self.scale - 1.0).abs() > 0.0 {
                values.iter_mut().for_each(|value| *value *= self.scale);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::Input;
    use crate::batch;
    use crate::context::Context;
    use crate::model::{Model, Weights};
    use crate::nodes::Capture;
    use crate::window::Span;
    use crate::{Backend, Mode, Output, WindowOptions};

    /// Rows that llama.cpp's own graph makes of tokens, at a tensor of this name.
    fn rows_in_llama_cpp(path: &Path, tensor: &str, tokens: &[i32]) -> Vec<f32> {
        Backend::init(Mode::Fast).unwrap();
        let model = Model::load(path, Weights::Repacked).unwrap();
        let options = WindowOptions {
            context_length: 256,
            max_rows: 64,
            output: Output::Hidden,
            ..WindowOptions::default()
        };
        let mut context = Context::capturing(model, &options, Some(Capture::of(tensor.to_owned()))).unwrap();
        let mut out = Vec::new();
        let span = Span {
            slot: 0,
            position: 0,
            count: tokens.len() as u32,
        };
        assert_eq!(batch::plan(&[span], 64).len(), 1);
        context.run_hidden(&[span], Input::Tokens(tokens), &mut out).unwrap();
        out
    }

    #[test]
    fn rows_are_those_that_llama_cpp_computes() {
        let cases = [
            (kvasir_tests::models::smollm2(), "embd", 1.0),
            (kvasir_tests::models::gemma3(), "inp_scaled", 640_f32.sqrt()),
        ];
        let tokens = [0, 1, 5, 49_000, 7, 7, 12_345];
        for (path, tensor, scale) in cases {
            let mut rows = Vec::new();
            Embedder::open(&path, scale).unwrap().rows(&tokens, &mut rows).unwrap();
            let expected = rows_in_llama_cpp(&path, tensor, &tokens);
            assert!(rows.iter().any(|value| *value != 0.0));
            assert!(
                rows.iter()
                    .map(|value| value.to_bits())
                    .eq(expected.iter().map(|value| value.to_bits())),
                "{tensor}"
            );
        }
    }
}
