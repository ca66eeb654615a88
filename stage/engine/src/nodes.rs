//! Nodes of a graph that are written over or read out while it is computed, each known by its name.

use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, c_void};

/// Rows of a node that is read, after which the graph ends.
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

    /// In the order of microbatches.
    pub(crate) fn rows(&self) -> &[f32] {
        &self.rows
    }
}

/// Rows that take the place of what a node was computed to.
#[derive(Debug)]
pub(crate) struct Overwrite {
    name: String,
    rows: Vec<f32>,
    written: usize,
    /// the node was of another shape or type
    refused: bool,
}

impl Overwrite {
    pub(crate) fn of(name: String) -> Overwrite {
        Overwrite {
            name,
            rows: Vec::new(),
            written: 0,
            refused: false,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The node took all values of the last call.
    pub(crate) fn is_done(&self) -> bool {
        !self.refused && self.written == self.rows.len()
    }

    /// Values that the node took of the last call's, and how many there were.
    pub(crate) fn taken(&self) -> (usize, usize) {
        (self.written, self.rows.len())
    }
}

/// The nodes of one context. Boxed by its owner: llama.cpp holds its address.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) overwrite: Option<Overwrite>,
    pub(crate) capture: Option<Capture>,
}

impl Nodes {
    pub(crate) fn is_empty(&self) -> bool {
        self.overwrite.is_none() && self.capture.is_none()
    }

    /// Makes ready for a call, whose rows come in this order.
    pub(crate) fn begin<'a>(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        if let Some(capture) = &mut self.capture {
            capture.rows.clear();
        }
        if let Some(overwrite) = &mut self.overwrite {
            overwrite.written = 0;
            overwrite.refused = false;
            overwrite.rows.clear();
            rows.for_each(|row| overwrite.rows.extend_from_slice(row));
        }
    }

    /// What `llama_context_params::cb_eval_user_data` must be for [`on_node`].
    pub(crate) fn user_data(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }
}

/// `cb_eval`: ggml's scheduler asks for each node whether it is wanted, and calls again when it is computed, before any node
/// behind it. Returning false then ends the graph (on one backend), so that neither output norm nor head are computed
/// after a window.
///
/// # Safety
/// To be called by ggml, with the address of live [`Nodes`] as `user_data`.
pub(crate) unsafe extern "C" fn on_node(tensor: *mut sys::ggml_tensor, ask: bool, user_data: *mut c_void) -> bool {
    // SAFETY: the context's owner passed its boxed Nodes, and touches them only between decode calls.
    let nodes = unsafe { &mut *user_data.cast::<Nodes>() };
    // SAFETY: ggml passes a live tensor, and its name is zero-terminated.
    let name = unsafe { CStr::from_ptr((&raw const (*tensor).name).cast()) }.to_bytes();
    let overwrite = nodes.overwrite.as_mut().filter(|node| node.name.as_bytes() == name);
    let capture = nodes.capture.as_mut().filter(|node| node.name.as_bytes() == name);
    if ask {
        return overwrite.is_some() || capture.is_some();
    }
    // SAFETY: the tensor is live and was just computed.
    unsafe {
        if let Some(overwrite) = overwrite {
            overwrite.refused = !write(overwrite, tensor);
            if overwrite.refused {
                return false;
            }
        }
        if let Some(capture) = capture {
            read(capture, tensor);
            return false;
        }
    }
    true
}

/// Values of a tensor, if it is made of as many f32 without gaps.
///
/// # Safety
/// The tensor must be live.
unsafe fn values(tensor: *const sys::ggml_tensor) -> Option<usize> {
    // SAFETY: the caller's.
    let (plain, values) = unsafe {
        (
            (*tensor).type_ == sys::GGML_TYPE_F32 && sys::ggml_is_contiguous(tensor),
            sys::ggml_nelements(tensor),
        )
    };
    usize::try_from(values).ok().filter(|_| plain)
}

/// Writes the next rows over the tensor; false where they don't fit it.
///
/// # Safety
/// The tensor must be live and computed.
unsafe fn write(overwrite: &mut Overwrite, tensor: *mut sys::ggml_tensor) -> bool {
    // SAFETY: the caller's.
    let Some(count) = (unsafe { values(tensor) }) else {
        return false;
    };
    let Some(rows) = overwrite.rows.get(overwrite.written..overwrite.written + count) else {
        return false;
    };
    // SAFETY: the tensor holds as many f32 as there are in `rows`, without gaps.
    unsafe { sys::ggml_backend_tensor_set(tensor, rows.as_ptr().cast(), 0, size_of_val(rows)) };
    overwrite.written += count;
    true
}

/// Appends the tensor's rows; nothing where it isn't plain f32, which the missing rows tell.
///
/// # Safety
/// The tensor must be live and computed.
unsafe fn read(capture: &mut Capture, tensor: *const sys::ggml_tensor) {
    // SAFETY: the caller's.
    if let Some(count) = unsafe { values(tensor) } {
        let start = capture.rows.len();
        capture.rows.resize(start + count, 0.0);
        let rows = &mut capture.rows[start..];
        // SAFETY: the tensor holds as many f32 as there is room for in `rows`, without gaps.
        unsafe { sys::ggml_backend_tensor_get(tensor, rows.as_mut_ptr().cast(), 0, size_of_val(rows)) };
    }
}
