//! Takes the residual stream out of a graph: the tensor of one name, and ends the graph there.

use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, c_void};

/// Rows of the captured tensor, in the order of microbatches. Boxed by its owner: llama.cpp holds its address.
#[derive(Debug)]
pub(crate) struct Capture {
    name: String,
    rows: Vec<f32>,
}

impl Capture {
    pub(crate) fn of(name: String) -> Capture {
        Capture { name, rows: Vec::new() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }

    pub(crate) fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// What `llama_context_params::cb_eval_user_data` must be for [`on_node`].
    pub(crate) fn user_data(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }
}

/// `cb_eval`: ggml's scheduler asks for each node whether it is wanted, and calls again when it is computed; returning
/// false then ends the graph (on one backend), so that neither output norm nor head are computed after a window.
///
/// # Safety
/// To be called by ggml, with the address of a live [`Capture`] as `user_data`.
pub(crate) unsafe extern "C" fn on_node(tensor: *mut sys::ggml_tensor, ask: bool, user_data: *mut c_void) -> bool {
    // SAFETY: the context's owner passed its boxed Capture, and touches it only between decode calls.
    let capture = unsafe { &mut *user_data.cast::<Capture>() };
    // SAFETY: ggml passes a live tensor, and its name is zero-terminated.
    let name = unsafe { CStr::from_ptr((&raw const (*tensor).name).cast()) };
    let wanted = name.to_bytes() == capture.name.as_bytes();
    if ask || !wanted {
        return ask == wanted;
    }
    // SAFETY: as above; the type is checked before the bytes are read as f32, and `ggml_backend_tensor_get` copies
    // exactly the bytes asked for out of a contiguous tensor.
    unsafe {
        if (*tensor).type_ == sys::GGML_TYPE_F32 && sys::ggml_is_contiguous(tensor) {
            let values = sys::ggml_nelements(tensor) as usize;
            let start = capture.rows.len();
            capture.rows.resize(start + values, 0.0);
            sys::ggml_backend_tensor_get(
                tensor,
                capture.rows[start..].as_mut_ptr().cast(),
                0,
                values * size_of::<f32>(),
            );
        }
    }
    false
}
