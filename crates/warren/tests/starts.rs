//! Several `warren up` at once.

use crate::support::{Client, Exit, Net, Running, flows, seconds};

#[test]
fn of_two_ups_of_a_profile_one_brings_it_up_and_the_other_is_refused() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));

    for _ in 0..3 {
        let mut both = [client.warren.start("up home"), client.warren.start("up home")];
        let ended: Vec<_> = both.iter_mut().map(|up| (up.wait(seconds(60)), up.output())).collect();

        let (done, refused): (Vec<_>, Vec<_>) = ended.iter().partition(|(code, _)| *code == Some(0));
        assert!(matches!(done.as_slice(), [_]) && matches!(refused.as_slice(), [_]), "{ended:?}");
        let (code, said) = refused[0];
        assert_eq!(*code, Some(1), "{said}");
        assert!(said.contains("is starting it already") || said.contains("is up already"), "{said}");
        assert_eq!(client.status().text("/state"), "up");
        assert_eq!(flows::echo_from_each(&net.client, 20_000..20_001), 1);
        client.down();
    }
}

#[test]
fn two_profiles_that_are_started_at_once_both_come_up() {
    let Some(net) = Net::new() else { return };
    let exit = Exit::start(&net);
    let client = Client::with(&net, &exit.enrol("laptop"));
    let work = exit.enrol("work").with("routes", "include", vec!["203.0.113.0/24"]);
    client.warren.write("work.toml", 0o600, &work.text());

    for _ in 0..2 {
        let mut ups = ["home", "work"].map(|name| client.warren.start(&format!("up {name}")));
        let cleanup = client.warren.run("cleanup");

        assert!(cleanup.succeeded(), "{}", cleanup.stderr);
        ups.iter_mut()
            .for_each(|up: &mut Running| assert_eq!(up.wait(seconds(60)), Some(0), "{}", up.output()));
        for name in ["home", "work"] {
            client.warren.run(&format!("status {name}")).ok();
        }
        client.warren.run("down --all").ok();
        client.assert_host_unchanged();
    }
}
