//! What crosses a wire or a mapping: frames, messages, the status page.

pub mod frame;
pub mod inspection;
pub mod message;
pub mod status_page;
pub mod tfrecord;
