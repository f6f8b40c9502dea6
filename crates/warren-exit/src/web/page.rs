//! The files of the page, embedded in the binary.

/// A file of the page and its content type.
#[derive(Debug)]
pub(super) struct PageFile {
    pub(super) content_type: &'static str,
    pub(super) text: &'static str,
}

/// The file at a path.
pub(super) fn file(path: &str) -> Option<PageFile> {
    let (content_type, text) = match path {
        "/" => ("text/html", include_str!("page/page.html")),
        "/page.css" => ("text/css", include_str!("page/page.css")),
        "/page.js" => ("text/javascript", include_str!("page/page.js")),
        "/add.js" => ("text/javascript", include_str!("page/add.js")),
        "/api.js" => ("text/javascript", include_str!("page/api.js")),
        "/audit.js" => ("text/javascript", include_str!("page/audit.js")),
        "/chart.js" => ("text/javascript", include_str!("page/chart.js")),
        "/client.js" => ("text/javascript", include_str!("page/client.js")),
        "/decide.js" => ("text/javascript", include_str!("page/decide.js")),
        "/dom.js" => ("text/javascript", include_str!("page/dom.js")),
        "/words.js" => ("text/javascript", include_str!("page/words.js")),
        "/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        _ => return None,
    };
    Some(PageFile { content_type, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 10] = [
        "/page.css",
        "/chart.js",
        "/page.js",
        "/add.js",
        "/api.js",
        "/audit.js",
        "/client.js",
        "/decide.js",
        "/dom.js",
        "/words.js",
    ];

    #[test]
    fn every_part_that_a_script_names_is_in_the_page() {
        let page = file("/").unwrap().text;
        for path in FILES {
            for rest in file(path).unwrap().text.split("at(\"").skip(1) {
                let id = rest.split('"').next().unwrap();
                assert!(page.contains(&format!("id=\"{id}\"")), "{path} names {id}");
            }
        }
    }

    #[test]
    fn page_loads_its_own_files_and_nothing_else() {
        let page = file("/").unwrap().text;
        for attribute in ["src=\"", "href=\""] {
            for rest in page.split(attribute).skip(1) {
                let target = rest.split('"').next().unwrap();
                assert!(target.starts_with('#') || file(target).is_some(), "{target} is not embedded");
            }
        }
        // The Content-Security-Policy would refuse these, and only a browser would show that.
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" onclick"));
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script src=").count() + page.matches("<script type=\"module\" src=").count()
        );
        for path in FILES {
            let text = file(path).unwrap().text;
            for rest in text.split(" from \"").skip(1) {
                let module = rest.split('"').next().unwrap();
                assert!(file(module).is_some(), "{path} imports {module}, which is not embedded");
            }
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "{path} names an address");
            assert!(
                !text.contains("innerHTML")
                    && !text.contains("insertAdjacentHTML")
                    && !text.contains("eval("),
                "{path} makes markup of text"
            );
        }
        assert!(file("/../page.js").is_none() && file("/page").is_none());
    }
}
