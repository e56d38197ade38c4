//! What crosses a wire or a mapping: frames, messages, the status page.

pub mod folders;
pub mod frame;
pub mod inspection;
pub mod lines;
pub mod link_event;
pub mod message;
pub mod pack;
pub mod status_page;
pub mod tfrecord;
