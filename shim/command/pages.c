/*
 * Writes gpushim(1) while building: what it is given, with a section of each command, from their
 * table, in the place of the line COMMANDS.
 *
 *     pages PAGE
 */
#include "shim/command/commands.h"

#include <stdio.h>
#include <string.h>

static void put(const char *text)
{
    for (; *text; text++)
        if (*text == '-')
            printf("\\-");
        else if (*text == '\\')
            printf("\\e");
        else if (*text == '\'')
            printf("\\(aq");
        else if (*text == '~')
            printf("\\(ti");
        else if (*text == '\n')
            printf(text[1] == '\n' ? "\n.PP\n" : ""), text += text[1] == '\n';
        else
            putchar(*text);
}

static void put_option(const struct command_option *option)
{
    printf(".TP\n\\fB");
    if (option->letter)
        printf("\\-%c\\fR, \\fB", option->letter);
    printf("\\-\\-");
    put(option->name);
    printf("\\fR");
    if (option->argument)
        printf(" \\fI"), put(option->argument), printf("\\fR");
    printf("\n");
    put(option->help);
    printf("\n");
}

static void put_command(const struct command *command)
{
    printf(".SS %s [OPTION]...%s", command->name, command->arguments[0] ? " " : "");
    put(command->arguments);
    printf("\n");
    put(command->text);
    printf("\n");
    for (size_t i = 0; i < OPTIONS_MOST && command->options[i].name; i++)
        if (command->options[i].help)
            put_option(&command->options[i]);
    for (size_t i = 0; i < EXAMPLES_MOST && command->examples[i].line; i++) {
        printf(".PP\nExample, ");
        put(command->examples[i].why);
        printf(":\n.PP\n.nf\n.RS\n");
        put(command->examples[i].line);
        printf("\n.RE\n.fi\n");
    }
}

int main(int argc, char **argv)
{
    FILE *page = argc == 2 ? fopen(argv[1], "r") : NULL;
    char line[1024];

    if (!page)
        return 1;
    while (fgets(line, sizeof line, page))
        if (strcmp(line, "COMMANDS\n") != 0)
            fputs(line, stdout);
        else
            for (size_t i = 0; i < command_count; i++)
                put_command(&commands[i]);
    return fclose(page) != 0 || fflush(stdout) != 0 || ferror(stdout);
}
