//! A file's table of tensors, as ggml reads it.

use llama_cpp_sys_2 as sys;
use std::ffi::CStr;

/// Name of each tensor and the byte of the file at which it lies, in the file's order; none if the file is no GGUF.
pub(crate) fn of(file: &CStr) -> Option<Vec<(String, u64)>> {
    let params = sys::gguf_init_params {
        no_alloc: true,
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: `file` is zero-terminated, and without `ctx` nothing but the prefix is read.
    let gguf = unsafe { sys::gguf_init_from_file(file.as_ptr(), params) };
    if gguf.is_null() {
        return None;
    }
    // SAFETY: the context lives until it is freed below, and so do the names in it; tensors are asked for by numbers
    // below their count.
    let tensors = unsafe {
        let data = sys::gguf_get_data_offset(gguf) as u64;
        let tensor = |number| {
            let name = CStr::from_ptr(sys::gguf_get_tensor_name(gguf, number));
            let offset = sys::gguf_get_tensor_offset(gguf, number) as u64;
            (name.to_string_lossy().into_owned(), data + offset)
        };
        (0..sys::gguf_get_n_tensors(gguf)).map(tensor).collect()
    };
    // SAFETY: made above, and used by nobody else.
    unsafe { sys::gguf_free(gguf) };
    Some(tensors)
}
