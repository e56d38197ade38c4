//! Words about charts.

use super::LineResult;
use crate::chart_view::{Axis, BESIDE};
use crate::commands;
use crate::keys::Command;
use crate::state::{Action, Overlay, PictureChoice, Tab, ViewState};
use rankdeck_core::model::Model;

pub(super) fn axis(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let axis = arguments.first().and_then(|name| Axis::named(name));
    let axis = axis.ok_or("axis steps, axis time or axis wall")?;
    let mut chart = std::mem::take(&mut view.chart);
    chart.turn(view.shown(model), axis);
    (view.chart, view.tab) = (chart, Tab::Charts);
    Ok(Vec::new())
}

pub(super) fn smooth(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let weight = arguments.first().and_then(|text| text.parse::<f64>().ok());
    let weight = weight.filter(|weight| (0.0..1.0).contains(weight)).ok_or("smooth WEIGHT: 0 to 0.99")?;
    view.chart.set_weight(weight);
    view.tab = Tab::Charts;
    Ok(Vec::new())
}

pub(super) fn chart(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if arguments.is_empty() {
        return Err("chart NAME: which series?".into());
    }
    let name = arguments.join(" ");
    if model.chart(&name).is_none() {
        return Err(format!("there is no series `{name}`"));
    }
    (view.series.selected, view.tab) = (Some(name), Tab::Charts);
    commands::toggle_series(model, view);
    Ok(Vec::new())
}

pub(super) fn export(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if model.charts().next().is_none() {
        return Err("export: no values yet".into());
    }
    if let Some(word) = arguments.iter().find(|word| !["csv", "svg", "png"].contains(word)) {
        return Err(format!("export csv, svg or png: `{word}` is none of them"));
    }
    let mut files = crate::chart_file::files(view.shown(model), view);
    files.retain(|file| arguments.is_empty() || arguments.contains(&file.ending));
    Ok(vec![Action::SaveFiles(files)])
}

/// Other runs over the charts, or none.
pub(super) fn compare(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if arguments.len() > BESIDE {
        return Err(format!("compare: {BESIDE} runs at most; `rankdeck compare` takes more"));
    }
    view.tab = Tab::Charts;
    Ok(vec![Action::Compare(arguments.iter().map(|run| (*run).to_owned()).collect())])
}

/// A picture by its name, or by a part of it that no other name has.
pub(super) fn media(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if let Some(why) = super::barred(model, view, Command::Pictures) {
        return Err(format!("media: {why}"));
    }
    let name = named(view.shown(model), &arguments.join(" "))?;
    view.open(Overlay::Pictures(PictureChoice { name, number: None }));
    Ok(Vec::new())
}

/// The name that is meant; none where nothing was typed.
fn named(model: &Model, typed: &str) -> Result<Option<String>, String> {
    if typed.is_empty() {
        return Ok(None);
    }
    let names = || model.gallery.names().map(|(name, _)| name);
    let mut like = names().filter(|name| name.contains(typed));
    let only = like.next().filter(|_| like.next().is_none());
    let found = names().find(|name| *name == typed).or(only);
    let found = found.ok_or_else(|| format!("media: `{typed}` is no name of a picture, or several"))?;
    Ok(Some(found.clone()))
}
