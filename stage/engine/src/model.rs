//! A loaded GGUF file: a window, a whole model, or a vocabulary alone.

use crate::error::EngineError;
use crate::{hole, log, table};
use llama_cpp_2::gguf::GgufContext;
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// Number of layers that are to be computed; less than `block_count` when the window has a padding layer.
const WINDOW_LAYERS: &str = "kvasir.window.layers";

/// Name of the node that the hidden states are to be written over, in place of being passed in.
const WINDOW_INPUT: &str = "kvasir.window.input";
/// 1 where the file has a hole that must stay unread.
const WINDOW_SPARSE: &str = "kvasir.window.sparse";

/// How the weights get into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// none: only the tokenizer's keys are read
    VocabularyOnly,
    /// read into memory, rearranged for the fastest kernels
    Repacked,
    /// read into memory as they are
    Plain,
    /// none, though their shapes are looked at and graphs can be built: of a file that has no weights yet
    Outline,
}

/// What the metadata says about a window, read before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Header {
    architecture: String,
    blocks: u32,
    window_layers: Option<u32>,
    input_node: Option<String>,
    /// A part of the file is a hole that only satisfies llama.cpp's loader: padding layers at the end, or an embedding
    /// that nobody looks up.
    sparse: bool,
}

impl Header {
    fn read(path: &Path) -> Result<Header, EngineError> {
        let unreadable = |source| EngineError::Read {
            path: path.to_owned(),
            source,
        };
        let damaged = |detail: String| EngineError::NotGguf {
            path: path.to_owned(),
            detail,
        };
        let mut magic = [0; 4];
        let mut file = std::fs::File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(damaged("it is a directory".to_owned()));
        }
        match file.read_exact(&mut magic) {
            Ok(()) if magic == *b"GGUF" => {}
            Ok(()) => return Err(damaged("it does not begin with GGUF".to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(damaged("it is shorter than its magic number".to_owned()));
            }
            Err(error) => return Err(unreadable(error)),
        }
        c_path(path)?;
        let (gguf, said) = log::listen(|| GgufContext::from_file(path));
        let gguf = gguf.ok_or_else(|| damaged(said.why()))?;
        let number = |key: &str| {
            let index = gguf.find_key(key);
            (index >= 0 && gguf.kv_type(index) == sys::GGUF_TYPE_UINT32).then(|| gguf.val_u32(index))
        };
        let text = |key: &str| {
            let index = gguf.find_key(key);
            (index >= 0 && gguf.kv_type(index) == sys::GGUF_TYPE_STRING)
                .then(|| gguf.val_str(index))
                .flatten()
                .map(str::to_owned)
        };
        let architecture = text("general.architecture")
            .ok_or_else(|| damaged("it does not name its general.architecture".to_owned()))?;
        Ok(Header {
            blocks: number(&format!("{architecture}.block_count")).unwrap_or(0),
            window_layers: number(WINDOW_LAYERS),
            input_node: text(WINDOW_INPUT),
            sparse: number(WINDOW_SPARSE) == Some(1),
            architecture,
        })
    }
}

/// llama.cpp says of tensors that it has no use for how many there are, and not which.
fn unknown_tensors(file: &CStr, said: &log::Said) -> Option<String> {
    /// Names that are told.
    const TOLD: usize = 3;
    if !said.why().contains("wrong number of tensors") {
        return None;
    }
    let mut unknown: Vec<String> = table::of(file)?.into_iter().map(|(name, _)| name).collect();
    unknown.retain(|name| !said.took(name));
    let more = match unknown.len().saturating_sub(TOLD) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    unknown.truncate(TOLD);
    let names = unknown.join(", ");
    (!names.is_empty()).then(|| format!("it has no use for {names}{more}"))
}

fn c_path(path: &Path) -> Result<CString, EngineError> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| EngineError::Path { path: path.to_owned() })
}

/// A loaded file. Immutable, and shared by the contexts, vocabularies and grammars made of it.
#[derive(Debug)]
pub(crate) struct Model {
    pointer: NonNull<sys::llama_model>,
    path: PathBuf,
    header: Header,
    /// bytes of weights in memory
    weight_bytes: u64,
}

// SAFETY: a llama_model is not changed after it is loaded; all functions called on it here only read it.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    pub(crate) fn load(path: &Path, weights: Weights) -> Result<Arc<Model>, EngineError> {
        let header = Header::read(path)?;
        let file = c_path(path)?;
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = 0;
        params.vocab_only = weights == Weights::VocabularyOnly;
        params.no_alloc = weights == Weights::Outline;
        // A mapped file stays resident beside the repacked copy, so it isn't mapped; but a hole must
        // stay unread, so there it is, and repacking, which would read it, is off.
        params.load_mode = if header.sparse && weights != Weights::Outline {
            sys::LLAMA_LOAD_MODE_MMAP
        } else {
            sys::LLAMA_LOAD_MODE_NONE
        };
        params.use_extra_bufts = matches!(weights, Weights::Repacked | Weights::Outline) && !header.sparse;
        // SAFETY: `file` is zero-terminated and outlives the call; llama.cpp catches its own exceptions here.
        let (pointer, said) = log::listen(|| unsafe { sys::llama_model_load_from_file(file.as_ptr(), params) });
        let pointer = NonNull::new(pointer).ok_or_else(|| EngineError::Load {
            path: path.to_owned(),
            detail: unknown_tensors(&file, &said).unwrap_or_else(|| said.why()),
        })?;
        let weight_bytes = if params.vocab_only || params.no_alloc {
            0
        } else {
            // SAFETY: the model was just loaded.
            unsafe { sys::llama_model_size(pointer.as_ptr()) }
        };
        if header.sparse
            && weights != Weights::Outline
            && let Some(start) = hole::start(&file, header.window_layers.unwrap_or(header.blocks))
        {
            hole::release(path, &(start..u64::MAX));
        }
        Ok(Arc::new(Model {
            pointer,
            path: path.to_owned(),
            header,
            weight_bytes,
        }))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::llama_model {
        self.pointer.as_ptr()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn architecture(&self) -> &str {
        &self.header.architecture
    }

    /// Name of the node that hidden states are written over; none where they are passed in.
    pub(crate) fn input_node(&self) -> Option<&str> {
        self.header.input_node.as_deref()
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Layers that are computed.
    pub(crate) fn layers(&self) -> u32 {
        // SAFETY: the model is loaded.
        self.header
            .window_layers
            .unwrap_or_else(|| unsafe { sys::llama_model_n_layer(self.as_ptr()) } as u32)
    }

    pub(crate) fn embedding_length(&self) -> usize {
        // SAFETY: the model is loaded.
        unsafe { sys::llama_model_n_embd(self.as_ptr()) as usize }
    }

    /// Query heads.
    pub(crate) fn heads(&self) -> u32 {
        // SAFETY: the model is loaded.
        u32::try_from(unsafe { sys::llama_model_n_head(self.as_ptr()) }).unwrap_or(0)
    }

    /// Positions to pass for a row of hidden states: 4 for M-RoPE models, else 1.
    pub(crate) fn position_sections(&self) -> usize {
        // SAFETY: the model is loaded.
        let rope = unsafe { sys::llama_model_rope_type(self.as_ptr()) };
        if rope == sys::LLAMA_ROPE_TYPE_MROPE || rope == sys::LLAMA_ROPE_TYPE_IMROPE {
            4
        } else {
            1
        }
    }

    /// Whether a sequence's cache is, in part, a state that can't forget its last positions.
    pub(crate) fn has_state(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { sys::llama_model_is_recurrent(self.as_ptr()) || sys::llama_model_is_hybrid(self.as_ptr()) }
    }

    /// Positions that sliding-window layers look back at; none without such layers.
    pub(crate) fn sliding_window(&self) -> Option<u32> {
        // SAFETY: the model is loaded.
        u32::try_from(unsafe { sys::llama_model_n_swa(self.as_ptr()) })
            .ok()
            .filter(|&n| n > 0)
    }

    pub(crate) fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is loaded, and the vocabulary lives as long as it.
        unsafe { sys::llama_model_get_vocab(self.as_ptr()) }
    }

    pub(crate) fn has_vocabulary(&self) -> bool {
        // SAFETY: the vocabulary belongs to the loaded model.
        unsafe { sys::llama_vocab_type(self.vocab()) != sys::LLAMA_VOCAB_TYPE_NONE }
    }

    /// Tokens of the vocabulary; 1 in windows without one.
    pub(crate) fn vocabulary_length(&self) -> usize {
        // SAFETY: the vocabulary belongs to the loaded model.
        unsafe { sys::llama_vocab_n_tokens(self.vocab()) as usize }
    }

    /// A metadata value as text; none when the key is missing.
    pub(crate) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let read = |buffer: &mut [u8]| {
            // SAFETY: the buffer is as long as said; llama.cpp writes at most that much and ends it with a zero.
            unsafe {
                sys::llama_model_meta_val_str(self.as_ptr(), key.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
            }
        };
        let length = usize::try_from(read(&mut [0])).ok()?;
        let mut buffer = vec![0; length + 1];
        read(&mut buffer);
        let text = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(text.to_string_lossy().into_owned())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: whatever borrows the model holds an `Arc` of it, so nothing does any more.
        unsafe { sys::llama_model_free(self.pointer.as_ptr()) }
    }
}
