//! The exit's Prometheus metrics, and the files in `configs/` that use them.

use std::net::{TcpListener, TcpStream};

use crate::support::daemon::repository;
use crate::support::open_metrics::{assert_configs_name_what_exists, expressions};
use crate::support::{Client, Exit, ExitOptions, Net, OpenMetrics, eventually, flows, seconds};

#[test]
fn scrape_is_valid_agrees_with_the_status_and_names_clients_only_when_asked_to() {
    let Some(net) = Net::new() else { return };
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("metrics", "clients", true));
    exit.run();
    let client = Client::with(&net, &exit.enrol("laptop"));
    client.up();
    assert_eq!(flows::echo_from_each(&net.client, 20_000..20_008), 8);

    let before = exit.status();
    let scraped = OpenMetrics::scrape(&net);
    let after = exit.status();

    assert_eq!((scraped.value("warren_sessions"), scraped.value("warren_clients_enrolled")), (1.0, 1.0));
    assert!(scraped.value("warren_handshakes_total") >= 1.0);
    let totals = before.0["totals"].as_object().unwrap();
    let gauges = ["queued_packets", "assemblies_pending", "quic_kept_bytes", "waiting_datagrams"];
    for name in totals.keys().filter(|name| !gauges.contains(&name.as_str())) {
        let value = scraped.value(&format!("warren_{name}_total"));
        let [least, most] = [&before, &after].map(|status| status.number(&format!("/totals/{name}")) as f64);
        let range = least..=most;
        assert!(range.contains(&value), "{name}: {value} is not in {range:?}");
    }
    for way in ["to_carrier", "to_tun"] {
        for reason in before.0[format!("drops_{way}")].as_object().unwrap().keys() {
            scraped.value(&format!("warren_drops_total{{way=\"{way}\",reason=\"{reason}\"}}"));
        }
    }
    let waited = scraped.value("warren_queue_wait_seconds_count");
    assert!(waited > 0.0 && waited <= scraped.value("warren_carrier_sent_packets_total"), "{waited}");
    let batches = scraped.value("warren_segments_per_send_count");
    assert!(scraped.value("warren_segments_per_send_sum") >= batches && batches > 0.0);
    let received = scraped.value("warren_client_received_packets_total{client=\"laptop\"}");
    assert!(received >= 8.0);
    assert!(scraped.value("warren_client_round_trip_seconds{client=\"laptop\"}") > 0.0);
    assert_configs_name_what_exists(&scraped);

    // A client's totals survive its session.
    client.down();
    eventually(seconds(10), "the session is over", || {
        OpenMetrics::scrape(&net).value("warren_sessions") == 0.0
    });
    let over = OpenMetrics::scrape(&net);
    assert_eq!(over.value("warren_client_connections{client=\"laptop\"}"), 0.0);
    assert!(over.value("warren_client_received_packets_total{client=\"laptop\"}") >= received);
    assert_eq!(over.value("warren_sessions_ended_total{reason=\"client_stopped\"}"), 1.0);

    exit.configure(|config| config.with("metrics", "clients", false));
    exit.warren.run("reload exit").ok();
    eventually(seconds(10), "clients are not named", || !OpenMetrics::page(&net).contains("laptop"));
    assert!(!OpenMetrics::page(&net).contains(Net::CLIENT_V4));
}

#[test]
fn listener_stays_on_the_loopback_and_outlives_idle_scrapers_and_moves_by_reload() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let outside = net.router.sh(&format!("curl --silent --max-time 5 http://{}:9466/metrics", Net::EXIT_V4));
    assert!(!outside.succeeded(), "{outside:?}");
    let before = exit.status().number("/process/fds");

    let idle = net.exit.enter(|| {
        let connect = |_| TcpStream::connect("127.0.0.1:9466").unwrap();
        (0..300).map(connect).collect::<Vec<_>>()
    });
    let idle = idle.join().unwrap();

    assert!(OpenMetrics::scrape(&net).value("warren_clients_enrolled") == 0.0);
    eventually(seconds(10), "only a few connections are kept", || {
        exit.status().number("/process/fds") < before + 24
    });
    drop(idle);

    exit.configure(|config| config.with("metrics", "listen", "127.0.0.1:9999"));
    exit.warren.run("reload exit").ok();
    net.exit.sh("curl --silent --fail --max-time 5 http://127.0.0.1:9999/metrics").ok();
    assert!(!net.exit.sh("curl --silent --max-time 5 http://127.0.0.1:9466/metrics").succeeded());
    exit.configure(|config| config.with("metrics", "listen", "0.0.0.0:9999"));
    let public = exit.warren.run("reload exit");
    assert!(public.stderr.contains("add public = true"), "{public:?}");
    exit.configure(|config| config.with("metrics", "public", true));
    exit.warren.run("reload exit").ok();
    net.router.sh(&format!("curl --silent --fail --max-time 5 http://{}:9999/metrics", Net::EXIT_V4)).ok();
    exit.configure(|config| config.with("metrics", "listen", "192.168.77.77:9999"));
    let elsewhere = exit.warren.run("reload exit");
    assert!(elsewhere.stderr.contains("this host has no such address"), "{elsewhere:?}");
    net.exit.sh("curl --silent --fail --max-time 5 http://127.0.0.1:9999/metrics").ok();

    // Nothing has moved if the page cannot move.
    let taken = net.exit.enter(|| TcpListener::bind("127.0.0.1:8443").unwrap()).join().unwrap();
    exit.configure(|config| {
        config.with("metrics", "listen", "127.0.0.1:9998").with("web", "listen", "127.0.0.1:8443")
    });
    let refused = exit.warren.run("reload exit");
    assert!(refused.code == Some(1) && refused.stderr.contains("8443"), "{refused:?}");
    net.exit.sh("curl --silent --fail --max-time 5 http://127.0.0.1:9999/metrics").ok();
    assert!(!net.exit.sh("curl --silent --max-time 5 http://127.0.0.1:9998/metrics").succeeded());
    drop(taken);
}

#[test]
fn a_taken_port_ends_an_exit_only_if_the_file_asks_for_it() {
    let Some(net) = Net::new() else { return };
    let taken = net.exit.enter(|| TcpListener::bind("127.0.0.1:9466").unwrap()).join().unwrap();
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.run();
    exit.daemon().wait_for_output("another program has this port");
    exit.stop(rustix::process::Signal::TERM);

    exit.configure(|config| config.with("metrics", "listen", "127.0.0.1:9466"));
    let refused = exit.warren.run("exit run");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("choose another for listen in [metrics]"), "{refused:?}");
    assert!(!net.exit.sh("ip link").ok().contains("warren"), "the failed start is undone");
    drop(taken);
}

/// Needs Prometheus.
#[test]
#[ignore = "needs Prometheus; `scripts/torture prometheus` runs it"]
fn prometheus_takes_every_scrape_and_evaluates_every_panel_and_rule() {
    let net = Net::new().expect("root can make a net");
    let mut exit = Exit::init(&net, &ExitOptions::default());
    exit.configure(|config| config.with("metrics", "clients", true));
    exit.run();
    Client::with(&net, &exit.enrol("laptop")).up();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("prometheus.yml");
    let rules = repository().join("configs/prometheus-alerts.yml");
    let text = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\n\
         scrape_configs: [{{ job_name: warren, static_configs: [{{ targets: [\"127.0.0.1:9466\"] }}] }}]\n",
        rules.canonicalize().unwrap().display()
    );
    std::fs::write(&file, text).unwrap();
    let mut prometheus = net.exit.start(&[
        "prometheus",
        &format!("--config.file={}", file.display()),
        &format!("--storage.tsdb.path={}", directory.path().join("data").display()),
        "--web.listen-address=127.0.0.1:9090",
    ]);
    let ask = |path: &str, more: &str| {
        let line = format!("curl --silent --max-time 20 --get {more} http://127.0.0.1:9090/api/v1/{path}");
        serde_json::from_str::<serde_json::Value>(&net.exit.sh(&line).stdout).unwrap_or_default()
    };
    let scrapes = |query: &str| {
        let answer = ask("query", &format!("--data-urlencode 'query={query}'"));
        answer["data"]["result"][0]["value"][1].as_str().and_then(|value| value.parse::<f64>().ok())
    };
    eventually(seconds(60), "Prometheus has scraped a few times", || {
        assert!(prometheus.is_running(), "{}", prometheus.output());
        scrapes("sum_over_time(up[1m])").is_some_and(|ups| ups >= 5.0)
    });

    assert_eq!(scrapes("min_over_time(up[1m])"), Some(1.0), "no scrape was refused");
    assert!(
        scrapes("warren_client_connections{client=\"laptop\"}").is_some_and(|connections| connections >= 1.0)
    );
    let expressions = expressions();
    for expression in &expressions {
        let asked =
            expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace('\'', "\"");
        let answer = ask("query", &format!("--data-urlencode 'query={asked}'"));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        // Expressions with a threshold or `absent` return nothing while all is well.
        let shows_all =
            !["absent(", " > ", " < ", " >= ", " <= ", " == "].iter().any(|sign| expression.contains(sign));
        let found = answer["data"]["result"].as_array().map_or(0, Vec::len);
        // This exit belongs to no fleet. `fleet.rs` has one that does.
        let shows_all = shows_all && !expression.contains("warren_fleet_");
        assert!(found > 0 || !shows_all, "{expression} shows nothing: {answer}");
    }
    let groups = ask("rules", "")["data"]["groups"].clone();
    let rules: Vec<&serde_json::Value> =
        groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() > 5 && rules.iter().all(|rule| rule["health"] == "ok"), "{rules:#?}");
    println!(
        "measured: {} expressions and {} rules evaluated, no scrape refused",
        expressions.len(),
        rules.len()
    );
}
