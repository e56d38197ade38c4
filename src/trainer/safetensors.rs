//! Weights in the safetensors format (https://github.com/huggingface/safetensors), which PyTorch programs
//! load by name.
//!
//! Layout: length of the header (u64, little-endian), header (JSON: dtype, shape and byte range of each
//! tensor), data. The header is padded with spaces to a multiple of 8, so that data are aligned. f32 only.

use super::error::TrainerError;
use super::state::Array;
use serde_json::{Map, Value, json};

/// The content of a file with these arrays.
pub fn encode<'a>(
    arrays: impl Iterator<Item = (&'a str, &'a Array)> + Clone,
) -> Result<Vec<u8>, TrainerError> {
    let (mut header, mut at) = (Map::new(), 0);
    for (name, array) in arrays.clone() {
        let end = at + 4 * array.values.len();
        header.insert(
            name.to_owned(),
            json!({ "dtype": "F32", "shape": array.shape, "data_offsets": [at, end] }),
        );
        at = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(header))
        .map_err(|error| TrainerError::failure(format!("cannot encode weights: {error}"), ""))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = Vec::with_capacity(8 + text.len() + at);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    for value in arrays.flat_map(|(_, array)| &array.values) {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_as_specified() {
        let a = Array { name: "a".into(), shape: vec![2, 1], values: vec![1.0, -2.0] };
        let b = Array { name: "b".into(), shape: vec![], values: vec![0.5] };
        let bytes = encode([("a", &a), ("b", &b)].into_iter()).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(length % 8, 0);
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!(header["a"], json!({ "dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8] }));
        assert_eq!(header["b"], json!({ "dtype": "F32", "shape": [], "data_offsets": [8, 12] }));
        assert_eq!(bytes[8 + length..], [1.0_f32, -2.0, 0.5].map(f32::to_le_bytes).concat());
    }
}
