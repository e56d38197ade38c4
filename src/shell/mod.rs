//! The only place that awaits: driver, terminal, headless, signals.
