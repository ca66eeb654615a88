//! Tensors of the files that are cut: the model's own, those that llama.cpp asks of every model, and padding.

use super::{EMBEDDING, Error, HEAD, Source, WindowRole, is_tied};
use crate::arch::{Architecture, GlobalRole};
use crate::model::{Model, Tensor};
use crate::tensor::{TensorType, layer_of};

/// A tensor that has no place yet.
pub(super) struct Unplaced {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) ty: TensorType,
    pub(super) source: Source,
}

fn tensor<'a>(model: &'a Model, name: &'static str) -> Result<&'a Tensor, Error> {
    model.tensor(name).ok_or(Error::NoTensor { name })
}

fn carried(tensor: &Tensor, name: String) -> Result<Unplaced, Error> {
    let source = Source::Range {
        part: tensor.part,
        offset: tensor.start,
        len: tensor.bytes()?,
    };
    Ok(Unplaced {
        name,
        dims: tensor.dims.clone(),
        ty: tensor.ty,
        source,
    })
}

/// What llama.cpp asks of every model and only the last rank's window has: made up in the others.
pub(super) fn made_up(model: &Model, architecture: &Architecture, role: &WindowRole) -> Vec<Unplaced> {
    if role.last {
        return Vec::new();
    }
    let width = model.embedding_length();
    let filled = |name: &str, dims: Vec<u64>, value: f32| Unplaced {
        name: name.into(),
        dims,
        ty: TensorType::F32,
        source: Source::Bytes(value.to_le_bytes().repeat(width as usize)),
    };
    let mut tensors = vec![
        filled(EMBEDDING, vec![width.into(), 1], 0.0),
        filled(architecture.head.norm, vec![width.into()], 1.0),
    ];
    if architecture.head.own {
        tensors.push(filled(HEAD, vec![width.into(), 1], 0.0));
    }
    tensors
}

/// The embedding, for the rank that embeds.
pub(super) fn of_vocabulary(model: &Model) -> Result<Vec<Unplaced>, Error> {
    Ok(vec![carried(tensor(model, EMBEDDING)?, EMBEDDING.into())?])
}

/// The MTP blocks, and what they share with the trunk.
pub(super) fn of_mtp(model: &Model, architecture: &Architecture) -> Result<Vec<Unplaced>, Error> {
    let mut tensors = Vec::new();
    for tensor in model.tensors() {
        match layer_of(&tensor.name) {
            Some((block, rest)) if block >= model.layers() => {
                tensors.push(carried(tensor, format!("blk.{}{rest}", block - model.layers()))?);
            }
            Some(_) => {}
            None => {
                architecture.global(&tensor.name)?;
                tensors.push(carried(tensor, tensor.name.clone())?);
            }
        }
    }
    Ok(tensors)
}

/// The window's own tensors, in the order in which they lie in the model.
pub(super) fn of_window(model: &Model, architecture: &Architecture, role: &WindowRole) -> Result<Vec<Unplaced>, Error> {
    if role.last {
        tensor(model, architecture.head.norm)?;
        tensor(model, EMBEDDING)?;
    }
    let own = architecture.head.own;
    let tied = is_tied(model);
    let mut tensors: Vec<(usize, u64, Unplaced)> = Vec::new();
    for tensor in model.tensors() {
        let name = match layer_of(&tensor.name) {
            Some((layer, rest)) => role
                .layers
                .contains(&layer)
                .then(|| format!("blk.{}{rest}", layer - role.layers.start)),
            None => match architecture.global(&tensor.name)? {
                GlobalRole::Every => Some(tensor.name.clone()),
                GlobalRole::Embedding => (role.last && tied).then(|| tensor.name.clone()),
                // the embedding isn't needed, so the head poses as a tied one: llama.cpp wants a token_embd in any case
                GlobalRole::Head if tensor.name == HEAD && !own => role.last.then(|| EMBEDDING.to_owned()),
                GlobalRole::Head => role.last.then(|| tensor.name.clone()),
            },
        };
        if let Some(name) = name {
            tensors.push((tensor.part, tensor.start, carried(tensor, name)?));
        }
    }
    tensors.sort_by_key(|(part, start, _)| (*part, *start));
    let mut tensors: Vec<Unplaced> = tensors.into_iter().map(|(_, _, tensor)| tensor).collect();
    if has_hole(architecture, role) {
        tensor(model, HEAD)?;
        tensors.push(embedding_hole(tensor(model, EMBEDDING)?)?);
    }
    Ok(tensors)
}

/// The window's file has a hole, padding layers aside: an embedding that llama.cpp wants beside the head.
pub(super) fn has_hole(architecture: &Architecture, role: &WindowRole) -> bool {
    role.last && architecture.head.own
}

/// As many rows as the embedding has, in the smallest type that its rows fit, for nobody reads them.
fn embedding_hole(tensor: &Tensor) -> Result<Unplaced, Error> {
    let small = [TensorType::IQ1_S, TensorType::Q2_0, TensorType::MXFP4]
        .into_iter()
        .find_map(|ty| Some((ty, ty.bytes(&tensor.dims)?)));
    let (ty, len) = match small {
        Some(small) => small,
        None => (tensor.ty, tensor.bytes()?),
    };
    Ok(Unplaced {
        name: EMBEDDING.into(),
        dims: tensor.dims.clone(),
        ty,
        source: Source::Hole { len },
    })
}

/// A layer of the missing kind, behind the window's own: never computed, and never read where the file is mapped.
pub(super) fn of_padding(model: &Model, layer: u32, new: usize) -> Result<Vec<Unplaced>, Error> {
    let hole = |tensor: &Tensor| {
        let (_, rest) = layer_of(&tensor.name)?;
        // matrices take the smallest type that fits; vectors and convolutions keep theirs, which their kernels need
        let matrix = tensor.dims.len() > 1 && tensor.ty != TensorType::F32;
        let small = TensorType::IQ1_S.bytes(&tensor.dims).filter(|_| matrix);
        let ty = if small.is_some() { TensorType::IQ1_S } else { tensor.ty };
        Some((format!("blk.{new}{rest}"), ty, small))
    };
    let mut tensors = Vec::new();
    for tensor in model.tensors_of_layer(layer) {
        if let Some((name, ty, small)) = hole(tensor) {
            let len = small.map_or_else(|| tensor.bytes(), Ok)?;
            tensors.push(Unplaced {
                name,
                dims: tensor.dims.clone(),
                ty,
                source: Source::Hole { len },
            });
        }
    }
    Ok(tensors)
}
