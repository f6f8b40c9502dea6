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
        "/chart.js" => ("text/javascript", include_str!("page/chart.js")),
        "/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        _ => return None,
    };
    Some(PageFile { content_type, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_loads_its_own_files_and_nothing_else() {
        let page = file("/").unwrap().text;
        for attribute in ["src=\"", "href=\""] {
            for rest in page.split(attribute).skip(1) {
                let target = rest.split('"').next().unwrap();
                assert!(target.starts_with('#') || file(target).is_some(), "{target} is not embedded");
            }
        }
        // The Content-Security-Policy would refuse these, which only a browser would show.
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" onclick"));
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script src=").count() + page.matches("<script type=\"module\" src=").count()
        );
        for path in ["/page.css", "/page.js", "/chart.js"] {
            let text = file(path).unwrap().text;
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "{path} names an address");
            assert!(!text.contains("innerHTML") && !text.contains("eval("), "{path} makes markup of text");
        }
        assert!(file("/../page.js").is_none() && file("/page").is_none());
    }
}
