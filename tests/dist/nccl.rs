use crate::harness::Me;
use serde_json::{Value, json};
pub fn rank(_me: &Me) -> Value {
    json!(null)
}
