//! What is shown: `view(&Model, &ViewState, &Theme)` and keys as data.
