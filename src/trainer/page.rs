//! The rank's status page, which the loop, the process group and environments write.

use rankdeck_proto::status_page::Writer;
use std::cell::RefCell;
use std::rc::Rc;

/// The status page, shared within the rank's one thread.
pub type Page = Rc<RefCell<Writer>>;
