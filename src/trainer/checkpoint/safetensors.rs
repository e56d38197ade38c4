//! Exports policies in the safetensors format (https://github.com/huggingface/safetensors).
//!
//! A file holds the weights by PyTorch's names, the moments that normalize observations, and a description.
//! docs/trainer.md has a loader.
//!
//! Layout: length of the header (u64, little-endian), header (JSON: dtype, shape and byte range of each
//! tensor, and `__metadata__`, texts by name), data. The header is padded with spaces to a multiple of 8, so
//! that data are aligned.

use crate::error::TrainerError;
use crate::support::state::Array;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A tensor of the file.
#[derive(Debug, Clone, Copy)]
pub enum TensorEntry<'a> {
    /// Numbers as networks have them.
    F32(&'a Array),
    /// A vector of exact numbers.
    F64(&'a [f64]),
}

impl TensorEntry<'_> {
    fn head(&self) -> (&'static str, Vec<i64>, usize) {
        match self {
            TensorEntry::F32(array) => ("F32", array.shape.clone(), 4 * array.values.len()),
            TensorEntry::F64(values) => ("F64", vec![values.len() as i64], 8 * values.len()),
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            TensorEntry::F32(array) => {
                array.values.iter().for_each(|value| bytes.extend(value.to_le_bytes()))
            }
            TensorEntry::F64(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
        }
    }
}

/// The content of a file with these tensors and texts.
pub fn encode(
    entries: &[(&str, TensorEntry<'_>)],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, TrainerError> {
    let (mut header, mut at) = (Map::new(), 0);
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), json!(metadata));
    }
    for (name, entry) in entries {
        let (dtype, shape, len) = entry.head();
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, at + len] }),
        );
        at += len;
    }
    let mut text = serde_json::to_vec(&Value::Object(header))
        .map_err(|error| TrainerError::failure(format!("cannot encode weights: {error}"), ""))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = Vec::with_capacity(8 + text.len() + at);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    entries.iter().for_each(|(_, entry)| entry.write(&mut bytes));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safetensors_layout_is_as_specified() {
        let a = Array { name: "a".into(), shape: vec![2, 1], values: vec![1.0, -2.0] };
        let b = Array { name: "b".into(), shape: vec![], values: vec![0.5] };
        let metadata = BTreeMap::from([("algorithm".to_owned(), "ppo".to_owned())]);
        let entries =
            [("a", TensorEntry::F32(&a)), ("b", TensorEntry::F32(&b)), ("c", TensorEntry::F64(&[0.1]))];
        let bytes = encode(&entries, &metadata).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(length % 8, 0);
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!(header["a"], json!({ "dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8] }));
        assert_eq!(header["b"], json!({ "dtype": "F32", "shape": [], "data_offsets": [8, 12] }));
        assert_eq!(header["c"], json!({ "dtype": "F64", "shape": [1], "data_offsets": [12, 20] }));
        assert_eq!(header["__metadata__"], json!({ "algorithm": "ppo" }));
        let floats = [1.0_f32, -2.0, 0.5].map(f32::to_le_bytes).concat();
        assert_eq!(bytes[8 + length..], [floats, 0.1_f64.to_le_bytes().to_vec()].concat());
    }
}
