//! What a rank and the rendezvous store say to each other, one record each way.
//!
//! Owner: store client and store server.

/// Most bytes of a key and of a value.
pub(super) const KEY_MAX: usize = 256;
pub(super) const VALUE_MAX: usize = 8 << 10;
/// Most bytes of a request or an answer.
pub(super) const RECORD: usize = 4 + KEY_MAX + VALUE_MAX;

/// A rank's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// Stores the value.
    Set(&'a str, &'a [u8]),
    /// Asks for the value.
    Get(&'a str),
    /// Adds to a number, 0 at first, and asks for the sum.
    Add(&'a str, i64),
}

/// The store's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request is carried out; the value that was asked for.
    Value(Vec<u8>),
    /// There is no such key.
    Absent,
    /// The store takes no more, or the request is none.
    Refused,
}

impl<'a> Request<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, key, value) = match self {
            Request::Set(key, value) => (b'S', key, value.to_vec()),
            Request::Get(key) => (b'G', key, Vec::new()),
            Request::Add(key, delta) => (b'A', key, delta.to_le_bytes().to_vec()),
        };
        let mut bytes = vec![kind];
        bytes.extend((key.len() as u16).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(value);
        bytes
    }

    /// `None` for bytes that are no request within the bounds.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (kind, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (key, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= KEY_MAX)?;
        match kind {
            b'S' if value.len() <= VALUE_MAX => Some(Request::Set(key, value)),
            b'G' if value.is_empty() => Some(Request::Get(key)),
            b'A' => Some(Request::Add(key, i64::from_le_bytes(value.try_into().ok()?))),
            _ => None,
        }
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Value(value) => [b"V", &value[..]].concat(),
            Answer::Absent => b"N".to_vec(),
            Answer::Refused => b"R".to_vec(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Answer> {
        match bytes.split_first()? {
            (b'V', value) => Some(Answer::Value(value.to_vec())),
            (b'N', []) => Some(Answer::Absent),
            (b'R', []) => Some(Answer::Refused),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_come_back_as_they_were() {
        for request in [Request::Set("a/b", b"\0\xff"), Request::Get(""), Request::Add("n", -7)] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for answer in [Answer::Value(vec![]), Answer::Value(vec![3]), Answer::Absent, Answer::Refused] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        let long = Request::Set("k", &[0; VALUE_MAX + 1]).encode();
        let key = Request::Get(&"k".repeat(KEY_MAX + 1)).encode();
        for bytes in [&b""[..], b"S", b"S\x05\0ab", b"G\x01\0ab", b"A\x01\0a123", b"G\x01\0\xff", &long, &key]
        {
            assert_eq!(Request::decode(bytes), None, "{bytes:?}");
        }
    }
}
