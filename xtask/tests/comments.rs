//! The comment of a field is a noun: what the field holds, not a sentence about something else. That of a flag is
//! `Flag:` with the condition. A comment holds no code that would have to run as a test.

use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{Visit, visit_field, visit_item_struct};
use syn::{
    Attribute, Expr, ExprLit, Field, GenericArgument, ItemEnum, ItemStruct, Lit, Meta,
    PathArguments, Type,
};

/// First words of comments that are no nouns.
const NOT_NOUNS: &str = "after all any anybody anything are as because before beside besides by during everybody \
     everything for from here how if in is it its none nobody not nothing of on or since so some somebody something such \
     that their there these they this those to until up upon was were what when where whether which while who whom whose \
     why with without";

/// The comments of fields in a file that do not begin with a noun.
#[derive(Default)]
struct Comments {
    /// The number of fields with a comment.
    seen: usize,
    wrong: Vec<String>,
}

/// The first line of a comment in front of an item.
fn comment(attributes: &[Attribute]) -> Option<String> {
    let first = attributes.iter().find(|a| a.path().is_ident("doc"))?;
    let Meta::NameValue(value) = &first.meta else {
        return None;
    };
    match &value.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value().trim().to_owned()),
        _ => None,
    }
}

/// Whether clap derives something: comments of its fields are help for the user.
fn is_help(attributes: &[Attribute]) -> bool {
    let mut found = false;
    for derive in attributes.iter().filter(|a| a.path().is_ident("derive")) {
        let _ = derive.parse_nested_meta(|meta| {
            let name = meta.path.segments.last().map(|s| s.ident.to_string());
            found |= name.is_some_and(|name| matches!(&*name, "Parser" | "Args" | "Subcommand"));
            Ok(())
        });
    }
    found
}

/// Whether it is a flag: `bool`, an atomic one, or one of these in a cell or a line of its own.
fn is_flag(kind: &Type) -> bool {
    let Type::Path(path) = kind else {
        return false;
    };
    let Some(last) = path.path.segments.last() else {
        return false;
    };
    let within = |arguments: &PathArguments| match arguments {
        PathArguments::AngleBracketed(list) => list
            .args
            .iter()
            .any(|argument| matches!(argument, GenericArgument::Type(kind) if is_flag(kind))),
        _ => false,
    };
    match &*last.ident.to_string() {
        "bool" | "AtomicBool" => true,
        "Cell" | "CachePadded" => within(&last.arguments),
        _ => false,
    }
}

impl<'a> Visit<'a> for Comments {
    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        if !is_help(&item.attrs) {
            visit_item_struct(self, item);
        }
    }

    fn visit_item_enum(&mut self, item: &'a ItemEnum) {
        if !is_help(&item.attrs) {
            syn::visit::visit_item_enum(self, item);
        }
    }

    fn visit_field(&mut self, field: &'a Field) {
        if let (Some(_), Some(text)) = (&field.ident, comment(&field.attrs)) {
            self.seen += 1;
            let word = text.split(|c: char| !c.is_ascii_alphabetic()).next();
            let word = word.unwrap_or_default().to_ascii_lowercase();
            let no_noun = NOT_NOUNS.split_whitespace().any(|not| not == word);
            if no_noun || is_flag(&field.ty) && word != "flag" {
                self.wrong.push(text);
            }
        }
        visit_field(self, field);
    }
}

fn comments(text: &str) -> Comments {
    let mut comments = Comments::default();
    comments.visit_file(&syn::parse_file(text).unwrap());
    comments
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn comments_that_are_no_nouns_are_found() {
    let text = "struct A {\n /// Whether it is open.\n open: bool,\n /// Slots of it.\n slots: u32,\n plain: u8,\n\
                /// Flag: it is there.\n there: Cell<bool>,\n /// Users know.\n known: std::cell::Cell<bool> }\n\
                enum B { C {\n /// It is why.\n why: String } }\n\
                #[derive(clap::Parser)] struct D {\n /// How often.\n often: u32 }";
    let found = comments(text);
    assert_eq!(found.seen, 5);
    let wrong = ["Whether it is open.", "Users know.", "It is why."];
    assert_eq!(found.wrong, wrong);
}

/// The project's top, and all its Rust files.
fn project() -> (&'static Path, Vec<PathBuf>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        rust_files(&root.join(folder), &mut files);
    }
    (root, files)
}

#[test]
fn blocks_in_comments_are_text() {
    for file in project().1 {
        let text = fs::read_to_string(&file).unwrap();
        let comments = text.lines().filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("//!").or(line.strip_prefix("///"))
        });
        let mut fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
        while let Some(fence) = fences.next() {
            assert_eq!(fence, "text", "{}", file.display());
            assert_eq!(fences.next(), Some(""), "{}", file.display());
        }
    }
}

#[test]
fn comments_of_fields_are_nouns() {
    let (root, files) = project();
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in files {
        let found = comments(&fs::read_to_string(&file).unwrap());
        seen += found.seen;
        let name = file.strip_prefix(root).unwrap().display();
        wrong.extend(found.wrong.iter().map(|text| format!("{name}: {text}")));
    }
    assert!(seen > 1000, "{seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
