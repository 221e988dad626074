/* Made and run while the project is built: a text file as a string of C.
 *
 * usage: embed NAME FILE */
#include <stdio.h>

int main(int argc, char **argv)
{
    FILE *file = argc == 3 ? fopen(argv[2], "r") : NULL;
    int c, last = '\n';

    if (!file)
        return perror(argc == 3 ? argv[2] : "usage: embed NAME FILE"), 1;
    printf("static const char %s[] =", argv[1]);
    for (; (c = fgetc(file)) != EOF; last = c) {
        if (last == '\n')
            fputs("\n    \"", stdout);
        if (c == '\n')
            fputs("\\n\"", stdout);
        else if (c < ' ' || c > '~')
            printf("\\%03o", (unsigned)c);
        else
            printf(c == '"' || c == '\\' || c == '?' ? "\\%c" : "%c", c);
    }
    puts(last == '\n' ? ";" : "\";");
    return fflush(stdout) != 0 || ferror(file);
}
