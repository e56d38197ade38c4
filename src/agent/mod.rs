//! What runs on a host: supervises ranks, samples, relays, proves the stop.
