/* First process of every pod: holds its namespaces, reaps its orphans, ends when it is told to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	sigset_t awaited;
	sigemptyset(&awaited);
	sigaddset(&awaited, SIGCHLD);
	sigaddset(&awaited, SIGINT);
	sigaddset(&awaited, SIGTERM);
	/* Process 1 gets no signal that it neither handles nor blocks. */
	sigprocmask(SIG_BLOCK, &awaited, 0);
	for (;;) {
		int got;
		if (sigwait(&awaited, &got) == 0 && got != SIGCHLD)
			return 0;
		while (waitpid(-1, 0, WNOHANG) > 0)
			;
	}
}
