//! Histograms and pictures, from what an agent says to what is kept and told.

use crate::report::ReportBody;
use crate::testkit::*;
use rankdeck_proto::media::encoded;
use rankdeck_proto::message::*;

fn histogram(name: &str, env_step: u64, edges: &[f64], counts: &[f64]) -> RankEvent {
    RankEvent::Histogram(LoggedHistogram {
        name: name.into(),
        env_step,
        edges: edges.to_vec(),
        counts: counts.to_vec(),
        ..LoggedHistogram::default()
    })
}

fn image(name: &str, env_step: u64, file: &[u8]) -> RankEvent {
    let data = encoded(file);
    RankEvent::Image(LoggedImage { name: name.into(), env_step, data, ..LoggedImage::default() })
}

const GIF: &[u8] = b"GIF89a\x05\0\x04\0";

#[test]
fn histograms_and_pictures_are_kept_and_told() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.rank_said(0, histogram("actions", 100, &[0.0, 1.0, 2.0], &[3.0, 1.0]));
    c.rank_said(0, image("seen", 200, GIF));
    let model = c.model();
    let column = &model.histograms["actions"].columns()[0];
    assert_eq!((column.place.step, column.bins.total()), (100.0, 4.0));
    assert_eq!(model.chart("actions").and_then(|series| series.last()), Some(0.75), "a chart of its means");
    let picture = &model.gallery.of("seen").unwrap()[0];
    assert_eq!((picture.place.step, picture.head.width, picture.number), (200.0, 5, 1));
    let told: Vec<&ReportBody> = c.told.iter().map(|(_, _, body)| body).collect();
    assert!(told.iter().any(|body| matches!(body, ReportBody::Histogram { count, min, max, .. }
        if (*count, *min, *max) == (4.0, 0.0, 2.0))));
    assert!(told.iter().any(|body| matches!(body, ReportBody::Image { width: 5, height: 4, bytes: 10, .. })));
}

#[test]
fn a_name_that_numbers_have_too_is_told_apart_whichever_came_first() {
    let scalars = |name: &str| RankEvent::Scalars {
        train_iter: 1,
        env_step: 10,
        values: [(name.to_owned(), 0.5)].into(),
        not_finite: Default::default(),
    };
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.rank_said(0, scalars("first"));
    c.rank_said(0, histogram("first", 20, &[0.0, 1.0], &[1.0]));
    c.rank_said(0, histogram("later", 20, &[0.0, 1.0], &[1.0]));
    c.rank_said(0, scalars("later"));
    c.rank_said(0, histogram("later", 30, &[0.0, 1.0], &[1.0]));
    let names: Vec<&str> = c.model().histograms.keys().map(String::as_str).collect();
    assert_eq!(names, ["first (histogram)", "later (histogram)"]);
    assert_eq!(c.model().histograms["later (histogram)"].columns().len(), 2);
    let mut all: Vec<&String> = c.model().charts().map(|(name, _)| name).collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "no name stands for two charts");
}

#[test]
fn what_is_wrong_or_of_another_rank_is_counted_and_nothing_else() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let before = c.model().drops;
    c.rank_said(0, histogram("h", 1, &[1.0, 0.0], &[1.0]));
    c.rank_said(0, image("p", 1, b"text"));
    c.rank_said(1, image("p", 1, GIF));
    c.rank_said(1, histogram("h", 1, &[0.0, 1.0], &[1.0]));
    assert_eq!(c.model().drops.misplaced, before.misplaced + 4);
    assert!(c.model().histograms.is_empty() && c.model().gallery.is_empty());
    for i in 0..40 {
        c.rank_said(0, histogram(&format!("h{i}"), 1, &[0.0, 1.0], &[1.0]));
        c.rank_said(0, image(&format!("p{i}"), 1, GIF));
    }
    let model = c.model();
    assert_eq!((model.histograms.len(), model.gallery.names().count()), (32, 32));
    assert_eq!(model.drops.charts, before.charts + 16);
}

#[test]
fn what_an_agent_withholds_is_counted_over_its_lives() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    for (withheld, sum) in [(3, 3), (10, 10), (4, 14)] {
        let sample = HostSample { withheld, ..HostSample::default() };
        c.said(0, AgentMessage::Sample(Box::new(sample)));
        assert_eq!(c.model().drops.withheld, sum);
    }
    assert_eq!(c.model().drops.lost(), 0, "rates are no loss to be alarmed by");
}
