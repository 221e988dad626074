/* Writes the sample file and the list of options in config/README.md from the rows of options.h,
 * or checks that they are current; and the manual page of the file. Runs while building; it is not
 * installed.
 *
 *     document check SAMPLE README     1 and a line on stderr if one of them is not current
 *     document update SAMPLE README    rewrites what is not
 *     document man DATE VERSION FILE   writes gpushim.conf(5); FILE is where the build looks for it
 *
 * In the README it is what stands between the lines BEGIN and END. */
#include "config/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEGIN "<!-- options -->\n"
#define END   "<!-- /options -->\n"

/* Columns of the sample, and of the page. */
#define WIDTH      80
#define PAGE_WIDTH 120

/* What both documents say before the options. */
static const char about_files[] =
    "An option's value comes from its variable, else from ~/.config/gpushim.conf (or "
    "$XDG_CONFIG_HOME/gpushim.conf), else from gpushim.conf in the build's sysconfdir "
    "(/usr/local/etc unless it was given another), else from /etc/gpushim.conf, else it is the "
    "default; GPUSHIM_LOG=info says which files were read. A file counts only if it belongs to "
    "root or to the user who runs the program and nobody else may write to it. GPUSHIM_CONFIG "
    "names a file that is read in place of all; set but empty, none is read. Set-user-id programs "
    "take only the system's two. A value that is not allowed is reported and gives the default.";
static const char about_values[] =
    "Files hold `key = value` lines under `[section]`; a # at the beginning of a line or after a "
    "blank begins a comment. Sizes take B, K, M, G, T or KiB, MiB, GiB, TiB (1 K is 1024 bytes); "
    "times take ns, us, ms, s, min.";

/* Writes the text in lines, wrapped at blanks: `first` before the first one, `next` before each
 * other. */
static void print_lines(FILE *out, const char *text, size_t width, const char *first,
                        const char *next)
{
    size_t column = 0;
    const char *before = first;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column && column + 1 + word > width) {
            fputc('\n', out);
            column = 0;
            before = next;
        }
        column += (size_t)fprintf(out, "%s%.*s", column ? " " : before, (int)word, text);
        text += word;
        text += *text == ' ';
    }
    fputc('\n', out);
}

/* As comment lines of the sample. */
static void print_wrapped(FILE *out, const char *text)
{
    print_lines(out, text, WIDTH, "# ", "# ");
}

static void print_sample_option(FILE *out, const struct gs_option *option)
{
    char variable[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE];
    gs_option_variable(option, variable);
    gs_option_allowed(option, allowed);
    fputc('\n', out);
    print_wrapped(out, option->help);
    fprintf(out, "# Allowed: %s. Variable: %s%s\n", allowed, variable,
            option->live ? ". gpushim set changes it" : "");
    fprintf(out, "#%s =%s%s\n", option->key, *option->standard ? " " : "", option->standard);
}

static void print_sample(FILE *out)
{
    print_wrapped(out, "Configuration of libgpushim: every option with its default.");
    fputs("#\n", out);
    print_wrapped(out, about_files);
    fputs("#\n", out);
    print_wrapped(out, about_values);
    for (size_t i = 0; i < gs_section_count; i++) {
        fputc('\n', out);
        print_wrapped(out, gs_sections[i].help);
        fprintf(out, "[%s]\n", gs_sections[i].name);
        for (size_t j = 0; j < gs_option_count; j++) {
            if (strcmp(gs_options[j].section, gs_sections[i].name) == 0)
                print_sample_option(out, &gs_options[j]);
        }
    }
}

static void print_paragraph_of_page(FILE *out, const char *text)
{
    print_lines(out, text, PAGE_WIDTH, "", "");
    fputc('\n', out);
}

static void print_page_option(FILE *out, const struct gs_option *option)
{
    char variable[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE], text[2048];
    gs_option_variable(option, variable);
    gs_option_allowed(option, allowed);
    snprintf(text, sizeof text, "`%s.%s`, `%s` (%s; default: %s): %s%s", option->section,
             option->key, variable, allowed, *option->standard ? option->standard : "nothing",
             option->help, option->live ? " `gpushim set` changes it while a program runs." : "");
    print_lines(out, text, PAGE_WIDTH, "- ", "  ");
}

static void print_readme(FILE *out)
{
    print_paragraph_of_page(out, about_files);
    print_paragraph_of_page(out, about_values);
    for (size_t i = 0; i < gs_option_count; i++) {
        const struct gs_option *option = &gs_options[i];
        if (i && strcmp(option->section, "debug") == 0 &&
            strcmp(option[-1].section, "debug") != 0) {
            fputc('\n', out);
            print_paragraph_of_page(out, gs_sections[gs_section_count - 1].help);
        }
        print_page_option(out, option);
    }
}

/* Text as roff takes it: `so` is bold. No line of it can begin with a control character. */
static void print_roff(FILE *out, const char *text)
{
    bool bold = false;
    for (const char *c = text; *c; c++) {
        if (*c == '`') {
            fputs(bold ? "\\fR" : "\\fB", out);
            bold = !bold;
        } else if (*c == '\\') {
            fputs("\\e", out);
        } else if (*c == '~' || *c == '-' || *c == '\'') {
            fputs(*c == '~' ? "\\(ti" : *c == '-' ? "\\-" : "\\(aq", out);
        } else {
            fputc(*c, out);
        }
    }
}

/* A paragraph of it. */
static void print_paragraph(FILE *out, const char *text)
{
    fputs("\\&", out);
    print_roff(out, text);
    fputc('\n', out);
}

static void print_man_option(FILE *out, const struct gs_option *option)
{
    char variable[GS_OPTION_NAME_SIZE], allowed[GS_OPTION_ALLOWED_SIZE];
    gs_option_variable(option, variable);
    gs_option_allowed(option, allowed);
    fprintf(out, ".TP\n\\fB%s\\fR =%s", option->key, *option->standard ? " " : "");
    print_roff(out, option->standard);
    fputc('\n', out);
    print_paragraph(out, option->help);
    fputs(".br\nAllowed: ", out);
    print_roff(out, allowed);
    fprintf(out, "\n.br\nVariable: \\fB%s\\fR\n", variable);
    if (option->live)
        fputs(".br\nCan be changed while a program runs: \\fBgpushim set\\fR\n", out);
}

static void print_man_options(FILE *out)
{
    for (size_t i = 0; i < gs_section_count; i++) {
        fprintf(out, ".SS [%s]\n", gs_sections[i].name);
        print_paragraph(out, gs_sections[i].help);
        for (size_t j = 0; j < gs_option_count; j++) {
            if (strcmp(gs_options[j].section, gs_sections[i].name) == 0)
                print_man_option(out, &gs_options[j]);
        }
    }
}

static void print_man(FILE *out, const char *date, const char *version, const char *built_file)
{
    fprintf(out,
            ".\\\" Made of config/options.h\n"
            ".TH GPUSHIM.CONF 5 \"%s\" \"libgpushim %s\" \"libgpushim\"\n"
            ".SH NAME\ngpushim.conf \\- options of libgpushim\n"
            ".SH DESCRIPTION\n",
            date, version);
    print_paragraph(out, about_files);
    fputs(".PP\n", out);
    print_paragraph(out, about_values);
    fputs(".PP\n", out);
    print_paragraph(out,
                    "`gpushim config` lists every option with its value and says what is wrong; "
                    "`gpushim config --check` reads one file. Each option below stands there with "
                    "its default.");
    fputs(".SH OPTIONS\n", out);
    print_man_options(out);
    fputs(".SH FILES\n.TP\n\\fI\\(ti/.config/gpushim.conf\\fR\nThe user\\(aqs.\n", out);
    if (strcmp(built_file, "/etc/gpushim.conf") != 0) {
        fputs(".TP\n\\fI", out);
        print_roff(out, built_file);
        fputs("\\fR\nThe system\\(aqs, by this build.\n", out);
    }
    fputs(".TP\n\\fI/etc/gpushim.conf\\fR\nThe system\\(aqs, by every build.\n"
          ".SH SEE ALSO\n.BR gpushim (1),\n.BR libgpushim (7)\n",
          out);
}

/* Gives p back; ends with a line where it is NULL. */
static void *must(void *p, const char *what)
{
    if (!p) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
    return p;
}

/* A file's text, to be freed; "" for one that does not exist. */
static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0;
    if (!file && errno == ENOENT)
        return must(strdup(""), path);
    /* No NUL can be in these files, so that up to NUL is all. */
    if (!file || (getdelim(&text, &size, '\0', file) < 0 && !feof(file))) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    fclose(file);
    return text ? text : must(strdup(""), path);
}

static char *wanted_sample(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = must(open_memstream(&text, &size), "sample");
    print_sample(out);
    fclose(out);
    return text;
}

/* The README with its table of options up to date. */
static char *wanted_readme(const char *path, const char *readme)
{
    const char *begin = strstr(readme, BEGIN);
    const char *end = begin ? strstr(begin, END) : NULL;
    if (!end) {
        fprintf(stderr, "%s: the lines %.*s and %.*s, between which the options go, are missing\n",
                path, (int)strlen(BEGIN) - 1, BEGIN, (int)strlen(END) - 1, END);
        exit(1);
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = must(open_memstream(&text, &size), path);
    fwrite(readme, 1, (size_t)(begin - readme) + strlen(BEGIN), out);
    print_readme(out);
    fputs(end, out);
    fclose(out);
    return text;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    printf("updated %s\n", path);
}

/* Returns whether the file is as wanted (check) or has been made so (update). Frees both texts. */
static bool settle(bool update, const char *path, char *is, char *wanted)
{
    bool current = strcmp(is, wanted) == 0;
    if (!current && update) {
        write_file(path, wanted);
        current = true;
    } else if (!current) {
        unsigned line = 1;
        for (size_t i = 0; is[i] && is[i] == wanted[i]; i++)
            line += is[i] == '\n';
        fprintf(stderr,
                "%s:%u: not what config/options.h says; run: meson compile -C build update-docs\n",
                path, line);
    }
    free(is);
    free(wanted);
    return current;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "man") == 0) {
        print_man(stdout, argv[2], argv[3], argv[4]);
        return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
    }
    bool update = argc == 4 && strcmp(argv[1], "update") == 0;
    if (!update && !(argc == 4 && strcmp(argv[1], "check") == 0)) {
        fprintf(stderr, "usage: document check|update SAMPLE README\n"
                        "       document man DATE VERSION FILE\n");
        return 2;
    }
    char *readme = read_file(argv[3]);
    bool sample_current = settle(update, argv[2], read_file(argv[2]), wanted_sample());
    bool readme_current = settle(update, argv[3], readme, wanted_readme(argv[3], readme));
    return sample_current && readme_current ? 0 : 1;
}
