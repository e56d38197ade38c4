//! Overlays on top of a page, as components on a stack.
//!
//! A new overlay is a struct that implements [`Component`] in a file of its own, and one line in the
//! screen's [`overlays!`](crate::overlays) list.

use crate::draw::DrawCtx;
use crate::draw::Target;
use crate::input;
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::ops::Deref;

/// Most overlays on top of each other.
pub const OVERLAYS: usize = 6;
/// Rows of a turn of the wheel.
pub const WHEEL: isize = 3;

/// A screen: the types that its keys and overlays work with.
pub trait Screen: Sized + 'static {
    /// What it shows; never changed by keys.
    type Model: 'static;
    /// What belongs to the screen itself: selections, scroll positions, the overlays.
    type State: 'static;
    /// What it asks of its owner.
    type Action: 'static;
    /// What a key can do.
    type Command: Copy + PartialEq + Sync + 'static;
    /// A part of the screen that can have keys of its own.
    type Pane: Copy + PartialEq + Sync + 'static;
    /// What a click can mean, besides keys and rows.
    type Target: Clone + 'static;
    /// What can lie over a page.
    type Overlay: Component<Self> + Clone + PartialEq;

    /// A pane's heading on the help page.
    fn pane_name(pane: Self::Pane) -> &'static str;
    /// The stack of overlays in the state.
    fn overlays(state: &mut Self::State) -> &mut Stack<Self::Overlay>;
}

/// What handling an input may use besides the model.
pub struct Cx<'a, S: Screen> {
    /// The screen's state; its stack still has the overlay that handles the input, as it was before.
    pub state: &'a mut S::State,
    /// When the input arrived.
    pub now: Timestamp,
}

/// What became of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Handled<A> {
    /// The overlay has no use for it.
    Ignored,
    /// The overlay stays open.
    Done,
    /// The overlay closes.
    Close,
    /// The overlay stays open, and this is to be done.
    Actions(Vec<A>),
    /// The overlay closes, and this is to be done.
    CloseWith(Vec<A>),
}

/// Whether an overlay stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It stays.
    Yes,
    /// It closes: what it is about is gone.
    No,
}

impl From<bool> for Keep {
    fn from(keep: bool) -> Keep {
        if keep { Keep::Yes } else { Keep::No }
    }
}

/// Something that lies over a page and owns its state, keys and drawing.
pub trait Component<S: Screen> {
    /// Handles a key, normalized by [`crate::keys::plain`].
    fn on_key(&mut self, model: &S::Model, key: KeyEvent, cx: &mut Cx<'_, S>) -> Handled<S::Action>;

    /// Handles a click on a place that its drawing recorded; keys are handled before.
    fn on_click(
        &mut self,
        model: &S::Model,
        target: &Target<S::Target>,
        cx: &mut Cx<'_, S>,
    ) -> Handled<S::Action> {
        let _ = (model, target, cx);
        Handled::Ignored
    }

    /// Handles a turn of the wheel; lists use [`wheel_as_arrows`]. `rows`: down is positive.
    fn on_wheel(&mut self, model: &S::Model, rows: isize, cx: &mut Cx<'_, S>) -> Handled<S::Action> {
        let _ = (model, rows, cx);
        Handled::Ignored
    }

    /// The line that takes pasted text.
    fn input(&mut self) -> Option<&mut String> {
        None
    }

    /// Clamps selection and scroll before drawing on this screen; [`Keep::No`] closes the overlay.
    fn settle(&mut self, model: &S::Model, state: &S::State, screen: Rect) -> Keep {
        let _ = (model, state, screen);
        Keep::Yes
    }

    /// Draws it. Pure.
    fn draw(&self, model: &S::Model, state: &S::State, cx: &DrawCtx<'_, S::Target>, buf: &mut Buffer);

    /// Its keys, for the footer.
    fn hint(&self, model: &S::Model, state: &S::State, cx: &DrawCtx<'_, S::Target>) -> String {
        let _ = (model, state, cx);
        "esc closes".into()
    }

    /// Plain text for the clipboard; `None`: that of the page below.
    fn copy(&self, model: &S::Model, state: &S::State, now: Timestamp) -> Option<String> {
        let _ = (model, state, now);
        None
    }

    /// A click outside closes it: it is only read.
    fn closes_on_click_beside(&self) -> bool {
        false
    }
}

/// A turn of the wheel in a list: as the arrow keys do it.
pub fn wheel_as_arrows<S: Screen>(
    overlay: &mut impl Component<S>,
    model: &S::Model,
    rows: isize,
    cx: &mut Cx<'_, S>,
) -> Handled<S::Action> {
    let code = if rows > 0 { KeyCode::Down } else { KeyCode::Up };
    for _ in 0..rows.unsigned_abs() {
        overlay.on_key(model, KeyEvent::from(code), cx);
    }
    Handled::Done
}

/// Overlays, the top one last; at most [`OVERLAYS`].
#[derive(Debug, Clone, PartialEq)]
pub struct Stack<O>(Vec<O>);

impl<O> Default for Stack<O> {
    fn default() -> Stack<O> {
        Stack(Vec::new())
    }
}

impl<O> Stack<O> {
    /// Puts an overlay on top, in place of another of its kind.
    pub fn open(&mut self, overlay: impl Into<O>) {
        let overlay = overlay.into();
        let kind = std::mem::discriminant(&overlay);
        self.0.retain(|other| std::mem::discriminant(other) != kind);
        self.0.truncate(OVERLAYS - 1);
        self.0.push(overlay);
    }

    /// Puts an overlay at a position from the bottom.
    pub fn insert(&mut self, at: usize, overlay: O) {
        self.0.insert(at.min(self.0.len()), overlay);
    }

    /// The top overlay.
    pub fn top(&self) -> Option<&O> {
        self.0.last()
    }

    /// The top overlay.
    pub fn top_mut(&mut self) -> Option<&mut O> {
        self.0.last_mut()
    }

    /// Closes the top overlay.
    pub fn pop(&mut self) -> Option<O> {
        self.0.pop()
    }

    /// Closes all overlays.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Keeps the overlays that match.
    pub fn retain(&mut self, keep: impl FnMut(&O) -> bool) {
        self.0.retain(keep);
    }
}

impl<O> Deref for Stack<O> {
    type Target = [O];

    fn deref(&self) -> &[O] {
        &self.0
    }
}

/// Lets the top overlay handle something, and closes it if it asks for that; `None`: no overlay is open. It
/// works on a copy: the state that it gets still holds it as it was. If the handler itself has replaced or
/// closed it there, that counts.
fn with_top<S: Screen>(
    state: &mut S::State,
    now: Timestamp,
    handle: impl FnOnce(&mut S::Overlay, &mut Cx<'_, S>) -> Handled<S::Action>,
) -> Option<Vec<S::Action>> {
    let before = S::overlays(state).top()?.clone();
    let mut after = before.clone();
    let (stays, actions) = match handle(&mut after, &mut Cx { state, now }) {
        Handled::Ignored | Handled::Done => (true, Vec::new()),
        Handled::Close => (false, Vec::new()),
        Handled::Actions(actions) => (true, actions),
        Handled::CloseWith(actions) => (false, actions),
    };
    let stack = &mut S::overlays(state).0;
    if let Some(at) = stack.iter().position(|overlay| *overlay == before) {
        if stays {
            stack[at] = after;
        } else {
            stack.remove(at);
        }
    }
    Some(actions)
}

/// A key goes to the top overlay; `None`: none is open.
pub fn on_key<S: Screen>(
    model: &S::Model,
    state: &mut S::State,
    key: KeyEvent,
    now: Timestamp,
) -> Option<Vec<S::Action>> {
    with_top::<S>(state, now, |top, cx| top.on_key(model, key, cx))
}

/// A turn of the wheel goes to the top overlay; `None`: none is open.
pub fn on_wheel<S: Screen>(
    model: &S::Model,
    state: &mut S::State,
    rows: isize,
    now: Timestamp,
) -> Option<Vec<S::Action>> {
    with_top::<S>(state, now, |top, cx| top.on_wheel(model, rows, cx))
}

/// Handles a click while an overlay is open: on a key hint, it is that key; on the overlay, it goes to the overlay;
/// outside of a read-only overlay, it closes that. `None`: no overlay is open.
pub fn on_click<S: Screen>(
    model: &S::Model,
    state: &mut S::State,
    found: Option<Target<S::Target>>,
    now: Timestamp,
) -> Option<Vec<S::Action>> {
    match found {
        Some(Target::Key(key)) => on_key::<S>(model, state, key, now),
        Some(Target::Covered) => (!S::overlays(state).is_empty()).then(Vec::new),
        Some(target) => with_top::<S>(state, now, |top, cx| top.on_click(model, &target, cx)),
        None => with_top::<S>(state, now, |top, _| match top.closes_on_click_beside() {
            true => Handled::Close,
            false => Handled::Ignored,
        }),
    }
}

/// Pasted text goes to the top overlay's line, if it has one; true when an overlay is open.
pub fn on_paste<S: Screen>(state: &mut S::State, text: &str) -> bool {
    let Some(top) = S::overlays(state).top_mut() else { return false };
    if let Some(line) = top.input() {
        input::paste(line, text);
    }
    true
}

/// Clamps all overlays before drawing, and closes those whose subject is gone. Returns whether the top one has
/// closed: keys that are being typed were meant for it.
pub fn settle<S: Screen>(model: &S::Model, state: &mut S::State, screen: Rect) -> bool {
    let mut all = std::mem::take(S::overlays(state));
    let mut top_stays = true;
    all.0.retain_mut(|overlay| {
        top_stays = overlay.settle(model, state, screen) == Keep::Yes;
        top_stays
    });
    *S::overlays(state) = all;
    !top_stays
}

/// Draws all overlays, the top one last.
pub fn draw<S: Screen>(
    stack: &Stack<S::Overlay>,
    model: &S::Model,
    state: &S::State,
    cx: &DrawCtx<'_, S::Target>,
    buf: &mut Buffer,
) {
    stack.iter().for_each(|overlay| overlay.draw(model, state, cx, buf));
}

/// Makes the enum of a screen's overlays, one line each, and passes [`Component`] on to them:
/// `overlays! { RunScreen; pub enum Overlay { Help(Help), Time(TimeInput) } }`.
#[macro_export]
macro_rules! overlays {
    ($screen:ty; $(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident($inner:ty)),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis enum $name { $($(#[$doc])* $variant($inner)),+ }

        $(impl From<$inner> for $name {
            fn from(overlay: $inner) -> $name { $name::$variant(overlay) }
        })+

        impl $crate::overlay::Component<$screen> for $name {
            fn on_key(
                &mut self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                key: crossterm::event::KeyEvent,
                cx: &mut $crate::overlay::Cx<'_, $screen>,
            ) -> $crate::overlay::Handled<<$screen as $crate::overlay::Screen>::Action> {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::on_key(inner, model, key, cx)),+ }
            }
            fn on_click(
                &mut self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                target: &$crate::draw::Target<<$screen as $crate::overlay::Screen>::Target>,
                cx: &mut $crate::overlay::Cx<'_, $screen>,
            ) -> $crate::overlay::Handled<<$screen as $crate::overlay::Screen>::Action> {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::on_click(inner, model, target, cx)),+ }
            }
            fn on_wheel(
                &mut self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                rows: isize,
                cx: &mut $crate::overlay::Cx<'_, $screen>,
            ) -> $crate::overlay::Handled<<$screen as $crate::overlay::Screen>::Action> {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::on_wheel(inner, model, rows, cx)),+ }
            }
            fn input(&mut self) -> Option<&mut String> {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::input(inner)),+ }
            }
            fn settle(
                &mut self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                state: &<$screen as $crate::overlay::Screen>::State,
                screen: ratatui::layout::Rect,
            ) -> $crate::overlay::Keep {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::settle(inner, model, state, screen)),+ }
            }
            fn draw(
                &self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                state: &<$screen as $crate::overlay::Screen>::State,
                cx: &$crate::draw::DrawCtx<'_, <$screen as $crate::overlay::Screen>::Target>,
                buf: &mut ratatui::buffer::Buffer,
            ) {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::draw(inner, model, state, cx, buf)),+ }
            }
            fn hint(
                &self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                state: &<$screen as $crate::overlay::Screen>::State,
                cx: &$crate::draw::DrawCtx<'_, <$screen as $crate::overlay::Screen>::Target>,
            ) -> String {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::hint(inner, model, state, cx)),+ }
            }
            fn copy(
                &self,
                model: &<$screen as $crate::overlay::Screen>::Model,
                state: &<$screen as $crate::overlay::Screen>::State,
                now: rankdeck_types::ids::Timestamp,
            ) -> Option<String> {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::copy(inner, model, state, now)),+ }
            }
            fn closes_on_click_beside(&self) -> bool {
                match self { $($name::$variant(inner) => $crate::overlay::Component::<$screen>::closes_on_click_beside(inner)),+ }
            }
        }
    };
}
