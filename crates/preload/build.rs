//! Compiles mimalloc, with our options, into one object with what only C can say.

use std::path::PathBuf;

fn main() {
    let include = std::env::var("DEP_MIMALLOC_INCLUDE_DIR")
        .expect("libmimalloc-sys names the folder of mimalloc's headers");
    let include = PathBuf::from(include);

    let mut build = cc::Build::new();
    build
        .include(&include)
        .include(include.with_file_name("src"))
        .file("csrc/allocator.c")
        // The library is loaded at the start of the program, so its thread-locals have a
        // place in the static block: reaching them never allocates.
        .flag("-ftls-model=initial-exec")
        .flag("-fno-builtin-malloc")
        .flag("-fvisibility=hidden")
        .flag("-fomit-frame-pointer")
        .opt_level(3)
        .warnings(false)
        .define("NDEBUG", None)
        .define("MI_DEBUG", "0")
        .define("MI_BUILD_RELEASE", None);
    for (option, value) in MIMALLOC_OPTIONS {
        build.define(option, *value);
    }
    build.compile("ebb_allocator");

    let mut build = cc::Build::new();
    build
        .file("csrc/glue.c")
        .flag("-fvisibility=hidden")
        .flag("-fexceptions")
        .opt_level(2)
        .warnings_into_errors(true)
        .compile("ebb_glue");

    println!("cargo:rerun-if-changed=csrc");
    println!("cargo:rerun-if-changed=build.rs");
    // Our constructor runs before every other library's, so our fork handlers are the
    // outermost: last before a fork, first after it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // The library calls its own functions, and zstd in it our `malloc`, also where the program defines one of that
    // name. The program's may wrap ours, and its memory is nothing for threads of ours.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // Segments begin with pages: else how many pages the loader writes to depends on the length of the code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,separate-loadable-segments");
    // What runs as each program starts lies together.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,keep-text-section-prefix");
    // Without the compiler's own start and end, which every program would run in vain: the loader calls constructors
    // by itself, and nothing of ours has to be done at the end. What they define besides is in csrc/glue.c.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
}

/// By measurement (kernel 6.18, x86-64):
///
/// - Arenas of 128 MiB, not 1 GiB: the bitmaps of an arena are written when it is made, so
///   the least process holds 212 KiB instead of 356. Arenas double in size after every
///   eighth, so that a large process has few.
/// - No advice for huge pages, which would fill memory that the program never touched.
/// - No collection at exit: it would bring back swapped memory only to free it.
const MIMALLOC_OPTIONS: &[(&str, Option<&str>)] = &[
    ("MI_DEFAULT_ARENA_RESERVE", Some("131072L")),
    ("MI_NO_THP", None),
    ("MI_SKIP_COLLECT_ON_EXIT", None),
];
