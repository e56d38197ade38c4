//! Compact encodings of values that a state holds in large numbers: without field names, and numbers as in memory.
//! Values that were written with names are read, too.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt;

/// Writes a structure as the list of its fields, in their order; deriving `Deserialize` reads that.
macro_rules! nameless {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let $name { $($field),+ } = self;
                ($($field),+,).serialize(to)
            }
        }
    };
}
pub(crate) use nameless;

/// Numbers in a row, four bytes each.
pub(crate) mod floats {
    use super::*;

    /// As bytes; as numbers in a text.
    pub fn serialize<S: Serializer>(values: &VecDeque<f32>, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return values.serialize(to);
        }
        let mut bytes = Vec::with_capacity(values.len() * 4);
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        to.serialize_bytes(&bytes)
    }

    /// Either form.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VecDeque<f32>, D::Error> {
        from.deserialize_any(Floats)
    }
}

struct Floats;

impl<'de> Visitor<'de> for Floats {
    type Value = VecDeque<f32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers of four bytes each")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<VecDeque<f32>, E> {
        let (values, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(E::invalid_length(bytes.len(), &self));
        }
        Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<VecDeque<f32>, A::Error> {
        let mut all = VecDeque::new();
        while let Some(value) = values.next_element()? {
            all.push_back(value);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        a: u64,
        b: Option<String>,
    }
    nameless!(Row { a, b });

    #[derive(Debug, Serialize, Deserialize)]
    struct HeldValues {
        #[serde(with = "floats")]
        values: VecDeque<f32>,
    }

    /// As an older build wrote it.
    #[derive(Serialize)]
    struct NamedRow {
        a: u64,
        b: Option<String>,
        values: VecDeque<f32>,
    }

    #[test]
    fn compact_and_named_forms_are_read() {
        let row = Row { a: 1 << 40, b: Some("x".into()) };
        let short = rmp_serde::to_vec_named(&row).unwrap();
        assert!(short.len() < 14, "{short:?}");
        assert_eq!(rmp_serde::from_slice::<Row>(&short).unwrap(), row);
        let values = VecDeque::from([0.5, f32::MIN_POSITIVE, f32::INFINITY]);
        let named = NamedRow { a: row.a, b: row.b.clone(), values: values.clone() };
        let long = rmp_serde::to_vec_named(&named).unwrap();
        assert_eq!(rmp_serde::from_slice::<Row>(&long).unwrap(), row);
        assert_eq!(rmp_serde::from_slice::<HeldValues>(&long).unwrap().values, values);
        let mut held = HeldValues { values };
        held.values.push_back(f32::NAN);
        let bytes = rmp_serde::to_vec_named(&held).unwrap();
        let read = rmp_serde::from_slice::<HeldValues>(&bytes).unwrap();
        let bits = |held: &HeldValues| held.values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read), bits(&held));
        assert_eq!(serde_json::to_string(&held.values).unwrap(), "[0.5,1.1754944e-38,null,null]");
        let odd = [&bytes[..bytes.len() - 1], &[]].concat();
        assert!(rmp_serde::from_slice::<HeldValues>(&odd).is_err());
    }
}
