;; What a user of gptel sets, and three things that they do (test_gptel.py). -*- lexical-binding: t -*-
(require 'gptel)
(require 'gptel-openai)
(require 'gptel-context)
(require 'gptel-rewrite)

(setq gptel-model 'coder
      gptel-temperature 0
      gptel-backend (gptel-make-openai "Daguerre"
                      :host (getenv "DAGUERRE_HOST")
                      :protocol "http"
                      :stream t
                      :key "none"
                      :models '((coder :capabilities (tool-use)))))

(defun without-fence (begin end)
  "Take the lines of a fence from an answer, which this model writes around code although it is told not to."
  (save-restriction
    (narrow-to-region begin end)
    (goto-char (point-min))
    (while (re-search-forward "^```.*\n?" nil t) (replace-match ""))))
(add-hook 'gptel-post-rewrite-functions #'without-fence)

(defvar asked (getenv "ASKED"))

(defun until (done)
  "Wait until the function DONE gives something."
  (with-timeout (300 (error "No answer"))
    (while (not (funcall done)) (accept-process-output nil 0.1))))

(defun answered ()
  "Send what was asked from a buffer of conversation, and print the buffer once the answer is there."
  (let (done)
    (add-hook 'gptel-post-response-functions (lambda (&rest _) (setq done t)))
    (with-current-buffer (gptel "*conversation*")
      (goto-char (point-max))
      (insert asked)
      (gptel-send)
      (until (lambda () done))
      (princ (buffer-string)))))

(defun answer-about-a-file ()
  "Ask with a file as context."
  (gptel-context-add-file "prices.py")
  (answered))

(defun call-a-tool ()
  "Ask with a function that the model may call."
  (setq gptel-use-tools t
        gptel-tools (list (gptel-make-tool
                           :name "hours_at_work"
                           :function (lambda (name) (format "%s worked 137 hours" name))
                           :description "The hours that a person has worked this month."
                           :args '((:name "name" :type string :description "The person")))))
  (answered))

(defun rewrite-a-function ()
  "Have a region rewritten, and take what comes."
  (setq gptel-rewrite-default-action 'accept)
  (find-file "prices.py")
  (transient-mark-mode 1)
  (goto-char (point-min))
  (search-forward "def calc")
  (beginning-of-line)
  (push-mark (point) t t)
  (search-forward "tax), 2)\n")
  (gptel--suffix-rewrite asked)
  (until (lambda () (buffer-modified-p)))
  (save-buffer))
