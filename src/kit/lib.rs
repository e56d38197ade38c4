//! Widgets, key tables and overlays that rankdeck's screens share.
//!
//! This crate knows no run: what a screen reads, keeps and asks for are the associated types of its
//! [`Screen`]. Drawing is pure; nothing here knows a clock, a terminal or a host.

pub mod confirm;
pub mod decoder;
pub mod draw;
pub mod frame;
pub mod help;
pub mod input;
pub mod keys;
pub mod list;
pub mod overlay;
pub mod plot;
pub mod text;
pub mod theme;
pub mod toast;

pub use draw::{DrawCtx, fit, put, put_lines, put_right, width};
pub use draw::{Target, Targets};
pub use overlay::{Component, Cx, Handled, Keep, Screen, Stack};
pub use theme::{ColorDepth, Glyphs, Role, Theme};
