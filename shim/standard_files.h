/* Standard input, output and error of the programs gpushim, gpushim-broker and gpushim-agent. */
#ifndef GPUSHIM_SHIM_STANDARD_FILES_H
#define GPUSHIM_SHIM_STANDARD_FILES_H

#include <fcntl.h>
#include <unistd.h>

/* As it begins: where it was given none of them, no file of its own gets that number, and no line
 * is written into it. Such a line fails as before, and a program that this one becomes finds the
 * number free. */
static inline void hold_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

#endif
