//! Histograms and pictures that the program logs.

use super::charts;
use crate::model::{Gallery, MEDIA_NAMES};
use crate::report::ReportBody;
use crate::session::{At, Ctx};
use rankdeck_proto::media::{self, Histogram};
use rankdeck_proto::message::{LoggedHistogram, LoggedImage};

pub(super) fn histogram(ctx: &mut Ctx<'_>, at: At, said: LoggedHistogram) {
    let LoggedHistogram { name, env_step, edges, counts, train_iter, .. } = said;
    let bins = Histogram { edges, counts };
    if bins.check().is_err() || media::check_name(&name).is_err() {
        ctx.model.drops.misplaced += 1;
        return;
    }
    let key = if ctx.model.scalars.contains_key(&name) { charts::beside(&name) } else { name.clone() };
    let known = &ctx.model.histograms;
    if known.len() >= MEDIA_NAMES && !known.contains_key(&key) {
        ctx.model.drops.charts += 1;
        return;
    }
    let (low, high) = bins.range();
    let body = ReportBody::Histogram {
        name,
        env_step,
        train_iter,
        count: bins.total(),
        mean: bins.mean(),
        min: low,
        max: high,
        edges: bins.edges.clone(),
        counts: bins.counts.clone(),
    };
    ctx.tell_at(at.generation, at.time, body);
    let place = charts::place(at, env_step);
    ctx.model.histograms.entry(key).or_default().push(place, bins);
}

pub(super) fn image(ctx: &mut Ctx<'_>, at: At, said: LoggedImage) {
    let LoggedImage { name, env_step, train_iter, data, .. } = said;
    let (Ok((head, file)), Ok(())) = (media::decoded(&data), media::check_name(&name)) else {
        ctx.model.drops.misplaced += 1;
        return;
    };
    let gallery: &mut Gallery = &mut ctx.model.gallery;
    if !gallery.push(name.clone(), charts::place(at, env_step), head, data) {
        ctx.model.drops.charts += 1;
        return;
    }
    let body = ReportBody::Image {
        name,
        env_step,
        train_iter,
        format: head.format,
        width: head.width,
        height: head.height,
        bytes: file.len() as u64,
    };
    ctx.tell_at(at.generation, at.time, body);
}
