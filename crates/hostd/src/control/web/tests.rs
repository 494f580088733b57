//! Which requests the page answers, and whom it refuses.

use super::*;

const TOKEN: &str = "0123456789abcdef";

fn get(path: &str) -> HttpRequest {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    HttpRequest {
        method: Method::Get,
        path: path.into(),
        query: query.into(),
        host: Some("127.0.0.1:9188".into()),
        origin: None,
        authorization: None,
        content_type: None,
        body: Vec::new(),
    }
}

fn post(path: &str, body: &str) -> HttpRequest {
    HttpRequest {
        method: Method::Post,
        origin: Some("http://127.0.0.1:9188".into()),
        authorization: Some(format!("Bearer {TOKEN}")),
        content_type: Some("application/json".into()),
        body: body.into(),
        ..get(path)
    }
}

fn routed(request: &HttpRequest) -> Result<Asked, &'static str> {
    let token = Token::of(TOKEN);
    route(request, Some(&token)).map_err(|refused| &refused.0[..3])
}

#[test]
fn paths_lead_to_answers() {
    let wanted = |since_s, whole, disk: Option<&str>, brief| {
        Ok(Asked::History(Wanted { since_s, whole, disk: disk.map(str::to_string), brief }))
    };
    assert_eq!(routed(&get("/api/status")), Ok(Asked::Status));
    assert_eq!(routed(&get("/api/history")), wanted(0.0, false, None, false));
    let all = "/api/history?since=12.5&whole=1&disk=web&brief=1";
    assert_eq!(routed(&get(all)), wanted(12.5, true, Some("web"), true));
    let slow = Ok(Asked::Slow { over_ms: 100.0, disk: Some("db".into()) });
    assert_eq!(routed(&get("/api/slow?over_ms=100&disk=db")), slow);
    for path in ["/", "/app.js", "/app.css", "/vendor/uPlot.iife.min.js", "/vendor/uPlot.min.css"] {
        assert!(matches!(routed(&get(path)), Ok(Asked::File(_))), "{path}");
    }
    for path in ["/index.html", "/api", "/api/", "/api/detach", "/../etc/passwd", "//", ""] {
        assert_eq!(routed(&get(path)), Err("404"), "{path}");
    }
    for path in ["/api/history?since=NaN", "/api/history?since=x", "/api/slow?over_ms="] {
        assert_eq!(routed(&get(path)), Err("400"), "{path}");
    }
}

#[test]
fn no_file_of_the_page_names_another_host() {
    for asset in ["/", "/app.js", "/app.css", "/charts.js", "/data.js", "/parts.js", "/views.js"]
        .map(find_asset)
    {
        let asset = asset.unwrap();
        let text = std::str::from_utf8(asset.bytes).unwrap();
        for scheme in ["http://", "https://", "url(", " style=", " onclick=", "<script>"] {
            assert!(!text.contains(scheme), "{}: {scheme}", asset.path);
        }
    }
}

#[test]
fn changes_are_posted_with_the_token() {
    let weight = Request::Weight { disk: "web".into(), weight: 4.try_into().unwrap() };
    let body = r#"{"disk":"web","weight":4}"#;
    assert_eq!(routed(&post("/api/weight", body)), Ok(Asked::Change(weight)));
    let policy = Request::Policy { policy: "cfq".into(), device: Some("sda".into()) };
    let asked = post("/api/policy", r#"{"policy":"cfq","device":"sda"}"#);
    assert_eq!(routed(&asked), Ok(Asked::Change(policy)));
    let limit = routed(&post("/api/limit", r#"{"disk":"web","limits":"iops=5"}"#));
    assert!(matches!(limit, Ok(Asked::Change(Request::Limit(_)))), "{limit:?}");
    // A body cannot be another command.
    let detach = post("/api/weight", r#"{"command":"detach","disk":"web"}"#);
    assert_eq!(routed(&detach), Err("400"));
    for path in ["/api/detach", "/api/attach", "/api/status", "/", "/api/weight/"] {
        assert_eq!(routed(&post(path, body)), Err("405"), "{path}");
    }
    for body in ["", "[]", "{", "{\"disk\":\"web\"}", "{\"disk\":\"web\",\"weight\":0}"] {
        assert_eq!(routed(&post("/api/weight", body)), Err("400"), "{body}");
    }
}

#[test]
fn who_may_not_is_refused() {
    let good = || post("/api/weight", r#"{"disk":"web","weight":4}"#);
    assert!(routed(&good()).is_ok());
    let without = route(&good(), None);
    assert_eq!(without.map_err(|refused| refused.0), Err(FORBIDDEN));
    for (request, status) in [
        (HttpRequest { authorization: None, ..good() }, "401"),
        (HttpRequest { authorization: Some("Bearer 0123456789abcdeF".into()), ..good() }, "401"),
        (HttpRequest { method: Method::Get, ..good() }, "405"),
        (HttpRequest { method: Method::Other, ..good() }, "405"),
        (HttpRequest { origin: Some("http://evil.example".into()), ..good() }, "403"),
        (HttpRequest { origin: Some("null".into()), ..good() }, "403"),
        (HttpRequest { content_type: Some("text/plain".into()), ..good() }, "415"),
        (HttpRequest { content_type: None, ..good() }, "415"),
    ] {
        assert_eq!(routed(&request), Err(status), "{request:?}");
    }
    // A program that is no browser sends no Origin.
    assert!(routed(&HttpRequest { origin: None, ..good() }).is_ok());
}

#[test]
fn a_request_for_another_host_is_told_why_and_what_to_do() {
    let allowed = ["kvm1.example.org".to_string()];
    let told = |host: Option<&str>| {
        foreign_host(&HttpRequest { host: host.map(str::to_string), ..get("/") }, &allowed)
    };
    assert_eq!(told(Some("127.0.0.1:9188")), None);
    assert_eq!(told(Some("kvm1.example.org:9188")), None);
    for (host, parts) in [
        (
            Some("kvm2.example.org:9187"),
            ["'kvm2.example.org:9187'", "--allow-host kvm2.example.org ("],
        ),
        (Some("evil\u{7f}.example"), ["evil\\u{7f}.example", "--allow-host NAME"]),
        (Some(""), ["DNS rebinding", "--allow-host NAME"]),
    ] {
        let text = told(host).expect("refused");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    assert_eq!(told(None), None, "no browser sends this");
    let post = HttpRequest { method: Method::Post, host: None, ..get("/") };
    assert!(foreign_host(&post, &allowed).is_some());
    assert!(told(Some(&"x".repeat(10_000))).expect("refused").len() < 600);
}
